"""OpenLDN (Rizve et al., ECCV 2022). Stage 1: learn the known classes, discover the novel ones.

    θ = (Θ, Φ)   backbone and head      image -> features z -> class probabilities p
    Ω            similarity network     z_i, z_j -> [0, 1]

    L_nov = L_pair + L_ce + L_reg                                                        (Eq. 1)

The pair loss asks that two predictions be as similar as f_Ω says. Ω is trained so that a step on L_nov lowers
the cross-entropy of labelled images: a bi-level problem, whose exact gradient is in `maths/bilevel.py`.

Stage 2 is closed-world training on class-balanced pseudo-labels: `closed_world.py`.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.maths.forward_mode import Params, Tape
from openldn.maths.losses import (
    cosine,
    entropy_loss,
    nearest_pairs,
    pair_bce,
    pair_loss,
    pseudo_label_loss,
)
from openldn.maths.metrics import pair_auc
from openldn.methods import fixmatch, mean_teacher, mixmatch, uda
from openldn.methods.closed_world import followed_by
from openldn.nets.backbones import Shortcuts
from openldn.nets.classifier import Classifier
from openldn.nets.similarity import PairSimilarity
from openldn.training import settings
from openldn.training.bilevel_step import OuterProblem, look_ahead
from openldn.training.schedules import Composition, equal, proportional
from openldn.training.stage import Losses, Objective, Stage, System


class Settings(settings.Settings):
    """Of stage 1."""

    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 50.0,
        "least_images": 0,
        "batch": 200,
        "composition": "equal",
        "schedule": "constant",
        "similarity_lr": 1e-4,
        "order": "omega-first",
        "omega_rows": "all",
        "omega_every": 1,
        "shortcuts": "pooled",
    }

    paper_on: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet-100": {"batch": 480, "lr": 1e-2}}

    epochs: float | None = 8.0
    """Passes over the unlabelled images."""
    least_images: int | None = 45_000
    """See at least this many unlabelled images, however few there are."""
    batch: int = 100
    """Labelled and unlabelled images per step; strong views come on top."""
    composition: Literal["equal", "proportional"] = "proportional"
    """Labelled images of a batch: half, or their share among all images."""
    shortcuts: Shortcuts = "projection"
    """Of ResNets: projection, 1x1 convolutions; pooled (authors' code), without parameters, and weights start
    as torch makes them."""
    tau: float = 0.5
    """Confidence above which the weak view's class is the strong view's pseudo-label."""
    pair: bool = True
    """The pair loss (false: ablation)."""
    entropy: bool = True
    """The entropy term (false: ablation)."""
    target: Literal["learned", "soft-cosine", "hard-cosine", "nearest", "apart"] = "learned"
    """Pair similarities: from the similarity network; cosine of features; the same above a threshold; 1 for
    nearest neighbours; apart: 0 for all pairs, a control."""
    cosine_threshold: float = 0.95
    """Of the hard-cosine target: cosine above which two images count as one class."""
    similarity_lr: float = 1e-3
    """Learning rate of the similarity network."""
    alpha: float = 1e-3
    """Step size of the look-ahead."""
    order: Literal["omega-first", "theta-first"] = "theta-first"
    """Which update comes first: omega-first improves the similarity network on a virtual step (authors'
    code); theta-first takes the step, then improves it (paper)."""
    attach: Literal["both", "lookahead", "neither"] = "lookahead"
    """Where the pair loss reaches the features through the similarity network: in both steps (the paper's
    equations), in the look-ahead only (authors' code), or in neither."""
    omega_rows: Literal["all", "few"] = "few"
    """Images the similarity network learns from: all of a step, or the labelled ones and as many others."""
    omega_every: int = 4
    """Update the similarity network every so many steps."""


class Discover(Objective):
    """One network, one similarity network, two optimisers."""

    unlabelled_views = ("weak", "strong")
    settings: Settings

    def __init__(self, problem: Problem, network: Classifier, settings: Settings):
        super().__init__(problem, network, settings)
        omega = PairSimilarity(network.head.in_features).to(next(network.parameters()).device)
        self.outer = OuterProblem(omega)  # not a submodule: it has an optimiser of its own
        self.bilevel = settings.pair and settings.target == "learned"
        self.n_steps = 0
        self.seen: dict[str, Tensor] = {}  # for diagnostics

    def composition(self) -> Composition:
        return (equal if self.settings.composition == "equal" else proportional)(
            self.problem, self.settings.batch
        )

    def terms(self, z: Tensor, logits: Tensor, y: Tensor, attach: bool) -> dict[str, Tensor]:
        """L_nov, term by term, of l labelled rows, u weak and u strong views.

        Pairs and the entropy term see the first l + u rows.
        """
        l, u = len(y), (len(logits) - len(y)) // 2  # noqa: E741
        p = logits[: l + u].softmax(dim=1)
        weak, strong = logits[l:].split(u)
        pseudo, self.seen["pseudo_labelled"] = pseudo_label_loss(weak, strong, self.settings.tau)
        terms = {"ce": F.cross_entropy(logits[:l], y), "pseudo": pseudo}
        if self.settings.pair:
            terms["pair"] = self.pair(z[: l + u], p, y, attach)
        if self.settings.entropy:
            terms["entropy"] = entropy_loss(p)
        return terms

    def pair(self, z: Tensor, p: Tensor, y: Tensor, attach: bool) -> Tensor:
        """L_pair with the chosen target."""
        z = z if attach else z.detach()
        match self.settings.target:
            case "learned":
                with torch.set_grad_enabled(attach):  # a constant target, unless features are attached
                    s = self.outer.omega(z)
            case "soft-cosine":
                s = cosine(z).clamp(0, 1)
            case "hard-cosine":
                s = (cosine(z) > self.settings.cosine_threshold).to(p.dtype)
            case "apart":
                s = torch.zeros(len(z), len(z), dtype=p.dtype, device=p.device)
            case "nearest":
                partner = nearest_pairs(z, y)
                self.seen["similarity"] = F.one_hot(partner, len(z)).to(p.dtype)
                agreement = (p * p[partner]).sum(dim=1).clamp_min(1e-8)
                return -agreement.log().mean()
        self.seen["similarity"] = s.detach()
        return pair_bce(p, s) if self.settings.target == "hard-cosine" else pair_loss(p, s)

    def losses(self, network: Classifier, average: Classifier, batch: Batch, progress: float) -> Losses:
        """L_nov; with the order `omega-first`, after the similarity network has been improved."""
        attach, y = self.settings.attach, batch.y
        rows = torch.cat([*batch.x, *batch.u])
        due = self.bilevel and self.n_steps % self.settings.omega_every == 0
        self.n_steps += 1
        # On the same rows Ω's update can reuse the convolutions of this pass.
        taped = due and self.settings.omega_rows == "all" and not network.mixed_precision
        tape = Tape() if taped else None
        with tape or nullcontext():
            z, logits = network(rows)
        self.seen["y"] = y
        theta = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.before: tuple[Params, Tape | None] | None = None
        if due and self.settings.order == "omega-first":
            # θ' = θ − α ∇ L_nov(θ, Ω)
            loss = torch.stack([*self.terms(z, logits, y, attach != "neither").values()]).sum()
            ahead = look_ahead(loss, theta, self.settings.alpha, len(rows))
            self.improve(network, batch, theta, ahead, tape)
        elif due:
            self.before = {name: p.detach().clone() for name, p in theta.items()}, tape
        return self.terms(z, logits, y, attach == "both")

    def after_step(self, network: Classifier, batch: Batch, progress: float) -> None:
        """With the order `theta-first`: Ω learns from where the real step has led."""
        if self.before is not None:
            ahead = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}
            theta, tape = self.before
            self.before = None
            self.improve(network, batch, theta, ahead, tape)

    def improve(
        self, network: Classifier, batch: Batch, theta: Params, ahead: Params, tape: Tape | None
    ) -> None:
        """Ω ← Ω − α_Ω ∇Ω L_ce^l(θ'(Ω)), where θ' = `ahead` came from θ = `theta`, where `tape` was made.

        From all rows, as the step saw them. Or, at a fraction of the cost, from pairs of the labelled rows
        and as many others, judged by the labelled rows alone, each set with batch statistics of its own.
        """
        x, l, u = torch.cat([*batch.x, *batch.u]), len(batch.y), len(batch.rows)  # noqa: E741
        n, judged = l + u, x
        if self.settings.omega_rows == "few":
            n = l + min(l, u)
            x, judged = x[:n], x[: max(l, 2)]  # of one row there are no batch statistics
        attach = self.settings.attach != "neither"

        def inner(z: Tensor, p: Tensor) -> Tensor:
            return pair_loss(p, self.outer.omega(z if attach else z.detach()))

        self.seen["omega_gradient"] = self.outer.improve(
            network,
            theta=theta,
            ahead=ahead,
            x=x,
            judged=judged,
            y=batch.y,
            known=lambda logits: logits,
            outputs=lambda z, logits: (z[:n], logits[:n].softmax(dim=1)),
            inner=inner,
            alpha=self.settings.alpha,
            lr=self.settings.similarity_lr,
            tape=tape,
        )

    def diagnostics(self) -> dict[str, float]:
        """A similarity network that has collapsed to a constant has a spread near 0 and an AUC near 0.5."""
        seen = self.seen
        scalars = ("pseudo_labelled", "omega_gradient")
        values: dict[str, float] = {name: float(seen[name]) for name in scalars if name in seen}
        if "similarity" in seen:
            s, y = seen["similarity"], seen["y"]
            off_diagonal = s[~torch.eye(len(s), dtype=torch.bool, device=s.device)]
            values |= {
                "similarity_mean": float(off_diagonal.mean()),
                "similarity_spread": float(off_diagonal.std()),
                "similarity_auc": pair_auc(s[: len(y), : len(y)].cpu(), y.cpu()),
            }
        return values

    def get_extra_state(self) -> dict[str, Any]:
        gradient = self.seen.get("omega_gradient", torch.tensor(0.0))
        return {"outer": self.outer.state_dict(), "n_steps": self.n_steps, "omega_gradient": gradient}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.outer.load_state_dict(state["outer"])
        self.n_steps = state["n_steps"]
        if self.bilevel and self.n_steps:
            self.seen["omega_gradient"] = state["omega_gradient"]


DISCOVER = Stage(name="discover", objective=Discover, settings=Settings, evaluations=10)
STAGE_1 = System(
    name="openldn",
    about="OpenLDN's stage 1 alone",
    paper="Rizve et al., OpenLDN: Learning to Discover Novel Classes for Open-World SSL, ECCV 2022",
    stages=(DISCOVER,),
)
SYSTEMS = (
    *(
        followed_by(STAGE_1, then, f"openldn-{then.name}", f"OpenLDN, closed-world training with {then.name}")
        for then in (
            uda.SECOND_STAGE,
            mixmatch.SECOND_STAGE,
            fixmatch.SECOND_STAGE,
            mean_teacher.SECOND_STAGE,
        )
    ),
    STAGE_1,
)
