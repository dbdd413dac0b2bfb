"""Plain supervised training on the labelled images: what one would do without any of this."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.nets.classifier import Classifier
from openldn.phases.training import Method, freeze_early


class Supervised(Method):
    """Cross-entropy on labelled images; also how DTC, RankStats and UNO begin."""

    name = "supervised"
    composition = "labelled"

    def __init__(self, problem: Problem, network: Classifier, frozen: bool = False):
        super().__init__()
        if frozen:  # what SimCLR has made stays
            freeze_early(network, problem)

    def losses(
        self, network: Classifier, average: Classifier, batch: Batch, progress: float
    ) -> Mapping[str, Tensor]:
        return {"ce": F.cross_entropy(network(batch.x[0]).logits, batch.y)}
