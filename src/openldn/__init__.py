"""Open-world learning on images: recognise the known classes, discover the novel ones.

model = openldn.OpenLDN(n_novel="auto").fit(X, y)       # y is -1 where unlabelled
run = openldn.train("photos", labels="labels.csv", novel=5)
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from openldn.errors import Diverged, OpenLDNWarning, UserError
    from openldn.estimator import OpenLDN, load
    from openldn.inference import evaluate, predict
    from openldn.options import Options
    from openldn.pipeline import resume, train
    from openldn.run import Run
    from openldn.systems import register
    from openldn.training.settings import Settings
    from openldn.training.stage import Objective, Stage, System

__all__ = [
    "Diverged",
    "Objective",
    "OpenLDN",
    "OpenLDNWarning",
    "Options",
    "Run",
    "Settings",
    "Stage",
    "System",
    "UserError",
    "evaluate",
    "load",
    "predict",
    "register",
    "resume",
    "train",
]

_HOME = {
    "OpenLDN": "estimator",
    "load": "estimator",
    "evaluate": "inference",
    "predict": "inference",
    "Run": "run",
    "register": "systems",
    "Settings": "training.settings",
    "Objective": "training.stage",
    "Stage": "training.stage",
    "System": "training.stage",
    "Options": "options",
    "Diverged": "errors",
    "OpenLDNWarning": "errors",
    "UserError": "errors",
}


def __getattr__(name: str) -> Any:
    """Imports names when they are used: `openldn --help` does not wait for torch."""
    from importlib import import_module

    if name in __all__:
        return getattr(import_module(f"openldn.{_HOME.get(name, 'pipeline')}"), name)
    raise AttributeError(f"module 'openldn' has no attribute {name!r}")
