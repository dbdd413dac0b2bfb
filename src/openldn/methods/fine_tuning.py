"""Fine-tuning: a pretrained network goes on learning, from what its frozen features gave.

The first stage classifies frozen features. Then the network gets a head that fits these predictions, and all
of it is trained as in `self_training.py`: a view of an unlabelled image follows what the averaged network
predicts for another view. Early layers learn slower, and images are downsized to save time.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from openldn.methods import self_training
from openldn.methods.self_training import SelfTraining
from openldn.methods.whitened_clustering import CLUSTERING, WhitenedClustering
from openldn.training.settings import OptimiserName
from openldn.training.stage import Stage, System


class Settings(self_training.Settings):
    """Of fine-tuning."""

    paper: ClassVar[Mapping[str, Any]] = {}

    epochs: float | None = 5.0
    """Passes over the unlabelled images."""
    least_images: int | None = 8_000
    """See at least this many unlabelled images, however few there are."""
    batch: int = 64
    """Images per step."""
    lr: float = 1e-3
    """Peak learning rate of the head."""
    backbone_lr: float = 0.2
    """Learning rate of the last layer of the backbone, in units of the head's."""
    early_lr: float = 0.02
    """The same of the first layer; in between it changes geometrically."""
    pixels: int = 128
    """Training images are downsized to this."""
    optimiser: OptimiserName = "adam"


FINE_TUNING = Stage(
    name="fine-tuning",
    objective=SelfTraining,
    settings=Settings,
    predictor=lambda settings: WhitenedClustering(),
    evaluations=5,
)
SYSTEM = System(
    name="fine-tuned",
    about="whitened clustering of frozen features, then fine-tuning",
    paper="ours",
    stages=(replace(CLUSTERING, share=0.0), FINE_TUNING),  # which has all of the length
)
