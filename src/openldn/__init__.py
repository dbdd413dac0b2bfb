"""Open-world learning on images: recognise the known classes, discover the novel ones.

model = openldn.OpenLDN(n_novel="auto").fit(X, y)       # y is -1 where unlabelled
run = openldn.train("photos", labels="labels.csv", novel=5)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from openldn.errors import Diverged as Diverged
    from openldn.errors import OpenLDNWarning as OpenLDNWarning
    from openldn.errors import UserError as UserError
    from openldn.estimator import OpenLDN as OpenLDN
    from openldn.estimator import load as load
    from openldn.inference import evaluate as evaluate
    from openldn.inference import predict as predict
    from openldn.options import Options as Options
    from openldn.pipeline import estimate as estimate
    from openldn.pipeline import resume as resume
    from openldn.pipeline import train as train
    from openldn.run import Run as Run
    from openldn.systems import register as register
    from openldn.training.settings import Settings as Settings
    from openldn.training.stage import Objective as Objective
    from openldn.training.stage import Stage as Stage
    from openldn.training.stage import System as System

_PUBLIC = {
    "errors": "Diverged OpenLDNWarning UserError",
    "estimator": "OpenLDN load",
    "inference": "evaluate predict",
    "options": "Options",
    "pipeline": "estimate resume train",
    "run": "Run",
    "systems": "register",
    "training.settings": "Settings",
    "training.stage": "Objective Stage System",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    """Imports names when they are used: `openldn --help` does not wait for torch."""
    if name in _HOME:
        return getattr(import_module(f"openldn.{_HOME[name]}"), name)
    raise AttributeError(f"module 'openldn' has no attribute {name!r}")
