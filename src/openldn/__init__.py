"""Open-world learning on images: recognise the known classes, discover the novel ones.

model = openldn.OpenLDN(n_novel="auto").fit(X, y)       # y is -1 where unlabelled
run = openldn.train("photos", labels="labels.csv", novel=5)
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from openldn.config import Options
    from openldn.errors import Diverged, OpenLDNWarning, UserError
    from openldn.estimator import OpenLDN, load
    from openldn.inference import evaluate, predict
    from openldn.pipeline import resume, train
    from openldn.run import Run

__all__ = [
    "Diverged",
    "OpenLDN",
    "OpenLDNWarning",
    "Options",
    "Run",
    "UserError",
    "evaluate",
    "load",
    "predict",
    "resume",
    "train",
]

_HOME = {
    "OpenLDN": "estimator",
    "load": "estimator",
    "evaluate": "inference",
    "predict": "inference",
    "Run": "run",
    "Options": "config",
    "Diverged": "errors",
    "OpenLDNWarning": "errors",
    "UserError": "errors",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is: `openldn --help` should not wait for torch."""
    from importlib import import_module

    if name in __all__:
        return getattr(import_module(f"openldn.{_HOME.get(name, 'pipeline')}"), name)
    raise AttributeError(f"module 'openldn' has no attribute {name!r}")
