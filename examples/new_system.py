"""A new system, outside the package: FixMatch's idea with a soft target. Use it like any other:

python examples/new_system.py systems soft-fixmatch
python examples/new_system.py train digits --method soft-fixmatch --set temperature=0.3
"""

import torch
import torch.nn.functional as F

import openldn
from openldn.cli import main
from openldn.maths.losses import entropy_loss


class Settings(openldn.Settings):
    temperature: float = 0.5
    """Sharpening temperature of the weak view's prediction."""


class SoftFixMatch(openldn.Objective):
    unlabelled_views = ("weak", "strong")

    def losses(self, network, average, batch, progress):
        x, (weak, strong) = batch.x[0], batch.u
        logits = network(torch.cat([x, weak, strong])).logits
        labelled, weak, strong = logits.split([len(x), len(weak), len(strong)])
        target = (weak.detach() / self.settings.temperature).softmax(dim=1)
        return {
            "labelled": F.cross_entropy(labelled, batch.y),
            "unlabelled": F.cross_entropy(strong, target),
            "entropy": entropy_loss(logits.softmax(dim=1)),
        }


STAGE = openldn.Stage(name="soft-fixmatch", objective=SoftFixMatch, settings=Settings)
openldn.register(openldn.System(name="soft-fixmatch", about="FixMatch with soft targets", stages=(STAGE,)))

if __name__ == "__main__":
    main()
