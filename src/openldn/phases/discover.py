"""Stage 1 of OpenLDN (Rizve et al., ECCV 2022): learn the known classes, discover the novel ones.

    θ = (Θ, Φ)   backbone and head      image -> features z -> class probabilities p
    Ω            similarity network     z_i, z_j -> [0, 1]

    L_nov = L_pair + L_ce + L_reg                                                        (Eq. 1)

The pair loss asks that predictions be as alike as f_Ω says; Ω is trained so that a step on L_nov lowers the
cross-entropy of labelled images, a bi-level problem whose gradient `bilevel` gives exactly.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from openldn import config
from openldn.balance import Balance, shares
from openldn.bilevel import hypergradient
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.forward_mode import Params, Tape
from openldn.losses import (
    cosine,
    entropy_loss,
    nearest_pairs,
    pair_bce,
    pair_loss,
    pseudo_label_loss,
)
from openldn.metrics import pair_auc
from openldn.nets.classifier import Classifier, Passes, Says, in_full, statistics_frozen
from openldn.nets.ema import MovingAverage
from openldn.nets.similarity import PairSimilarity
from openldn.optimisers import Adam, optimiser
from openldn.phases.schedule import composition, learning_rate, steps_for


class Discover:
    """The phase: one network, one similarity network, two optimisers."""

    name: str = "discover"

    def __init__(self, problem: Problem, network: Classifier, settings: config.Discover):
        self.problem, self.network, self.settings = problem, network, settings
        mixed = settings.views == "mixed"
        self.labelled_views: tuple[str, ...] = ("mixed",) if mixed else ("weak",)
        self.unlabelled_views: tuple[str, ...] = ("weak", "mixed") if mixed else ("weak", "strong")
        # Who is asked about weak views, if not the network itself on the way.
        self.average = MovingAverage(network, settings.ema_steps) if mixed else None
        self.balance = (
            Balance(shares(problem).to(next(network.parameters())))
            if settings.targets == "balanced"
            else None
        )
        self.similarity = PairSimilarity(network.head.in_features).to(next(network.parameters()).device)
        self.optimiser = optimiser(settings.optimiser, network)
        self.similarity_optimiser = Adam([*self.similarity.parameters()])
        self.n_labelled, self.n_unlabelled = composition(problem, settings)
        self.epoch, self.steps = steps_for(
            settings.length, len(problem.unlabelled), self.n_unlabelled, cost=self.cost()
        )
        self._seen: dict[str, Tensor] = {}

    @property
    def model(self) -> nn.Module:
        """The network that predictions come from."""
        return self.network if self.average is None else self.average.network

    def cost(self) -> float:
        """Image passes of a step, on average."""
        l, u = self.n_labelled, self.n_unlabelled  # noqa: E741
        mixed = self.average is not None
        learned, looked_at = (l + u, u) if mixed else (l + 2 * u, 0)
        judged, along = (learned, learned) if self.settings.omega_rows == "all" else (l, l + min(l, u))
        ahead = 2 * learned if self.settings.order == "omega-first" else 0
        omega = (ahead + 3 * (judged + along)) / self.settings.every if self._bilevel else 0
        return 3 * learned + looked_at + omega

    def begin(self, previous: Says | None) -> None:
        """Starts from scratch."""

    def learning_rate(self, progress: float) -> float:
        return learning_rate(self.settings.lr, self.settings.schedule, progress)

    def theta(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained; a user's backbone may hold frozen ones."""
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    # -------------------------------------------------------------------------------- the method

    def rows(self, batch: Batch) -> Tensor:
        """What is learned from: l labelled images, u others, and of weak-strong views the strong ones.

        Pairs and the entropy term see the first l + u.
        """
        weak, other = batch.u
        return torch.cat([*batch.x, weak, other] if self.average is None else [*batch.x, other])

    def losses(self, z: Tensor, logits: Tensor, y: Tensor, weak: Tensor, attach: bool) -> dict[str, Tensor]:
        """L_nov, term by term, of what the network says of `rows`, and of weak views."""
        l, u = len(y), len(weak)  # noqa: E741
        p = logits[: l + u].softmax(dim=1)
        pseudo, self._seen["pseudo_labelled"] = pseudo_label_loss(weak, logits[-u:], self.settings.tau)
        terms = {"ce": F.cross_entropy(logits[:l], y), "pseudo": pseudo}
        if self.settings.pair:
            terms["pair"] = self.pair(z[: l + u], p, y, attach)
        if self.settings.entropy:
            terms["entropy"] = entropy_loss(p)
        return terms

    def pair(self, z: Tensor, p: Tensor, y: Tensor, attach: bool) -> Tensor:
        """L_pair with the chosen kind of target."""
        z = z if attach else z.detach()
        match self.settings.target:
            case "learned":
                with torch.set_grad_enabled(attach):  # a target, unless features are to feel it
                    s = self.similarity(z)
            case "soft-cosine":
                s = cosine(z).clamp(0, 1)
            case "hard-cosine":
                s = (cosine(z) > self.settings.threshold).to(p.dtype)
            case "apart":  # a control: what the loss does without knowing anything
                s = torch.zeros(len(z), len(z), dtype=p.dtype, device=p.device)
            case "nearest":
                partner = nearest_pairs(z, y)
                s = F.one_hot(partner, len(z)).to(p.dtype)
                agreement = (p * p[partner]).sum(dim=1).clamp_min(1e-8)
                self._seen["similarity"] = s.detach()
                return -agreement.log().mean()
        self._seen["similarity"] = s.detach()
        return pair_bce(p, s) if self.settings.target == "hard-cosine" else pair_loss(p, s)

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        """L_nov on one batch; with the order `omega-first`, after the similarity net has been improved."""
        y = batch.y
        due = self._bilevel and self._turn(progress)
        # What Ω's turn will go over again, if it is the same rows.
        taped = due and self.settings.omega_rows == "all" and not self.network.halved
        tape = Tape() if taped else None
        with tape or nullcontext():
            z, logits = self.network(self.rows(batch))
        self._seen["y"] = y
        weak = logits[len(y) :][: len(batch.rows)]
        if self.average is not None:
            with torch.no_grad():
                weak = self.average.network(batch.u[0]).logits
        if self.balance is not None:
            weak = self.balance(weak)
        if due and self.settings.order == "omega-first":
            # look ahead        θ' = θ − α ∇ L_nov(θ, Ω)
            theta = self.theta()
            loss = torch.stack([*self.losses(z, logits, y, weak, self.settings.attach != "neither").values()])
            Passes.count(2 * len(z))  # a second way back over the same pass
            slopes = torch.autograd.grad(
                loss.sum(), [*theta.values()], retain_graph=True, materialize_grads=True
            )
            ahead = {
                name: p.detach() - self.settings.alpha * g
                for (name, p), g in zip(theta.items(), slopes, strict=True)
            }
            self.improve_similarity(batch, theta, ahead, tape)
        elif due:
            self._before = {name: p.detach().clone() for name, p in self.theta().items()}, tape
        return self.losses(z, logits, y, weak, self.settings.attach == "both")

    def after_step(self, batch: Batch, progress: float) -> None:
        """With the order `theta-first`: Ω learns from where the real step has led. The average follows."""
        if self._bilevel and self._turn(progress) and self.settings.order == "theta-first":
            now = {name: p.detach() for name, p in self.theta().items()}
            before, tape = self._before
            del self._before
            self.improve_similarity(batch, before, now, tape)
        if self.average is not None:
            self.average.update(self.network, round(progress * self.steps))

    def improve_similarity(self, batch: Batch, theta: Params, ahead: Params, tape: Tape | None) -> None:
        """Ω ← Ω − α_Ω ∇_Ω L_ce^l(θ'(Ω)), where θ' = `ahead` came from θ = `theta`, where `tape` was made.

        From all rows, as the step saw them; or, at a fraction of the cost, from the pairs of the labelled and
        as many other rows, judged by the labelled ones, each group normalised by statistics of its own.
        """
        x, y = self.rows(batch), batch.y
        l, u = len(y), len(batch.rows)  # noqa: E741
        if self.settings.omega_rows == "all":
            n, judged = l + u, x
        else:
            n = l + min(l, u)
            x, judged = x[:n], x[: max(l, 2)]  # of one row there are no statistics
        attach = self.settings.attach != "neither"

        def z_and_p(params: Params) -> tuple[Tensor, Tensor]:
            z, logits = functional_call(self.network, dict(params), (x,))
            return z[:n], logits[:n].softmax(dim=1)

        def inner(z: Tensor, p: Tensor) -> Tensor:
            return pair_loss(p, self.similarity(z if attach else z.detach()))

        with statistics_frozen(self.network):
            ahead = {name: p.requires_grad_() for name, p in ahead.items()}
            _, logits = functional_call(self.network, ahead, (judged,))
            outer = F.cross_entropy(logits[:l], y)
            slopes = torch.autograd.grad(outer, [*ahead.values()], materialize_grads=True)
            v = dict(zip(ahead, slopes, strict=True))
            omega = [*self.similarity.parameters()]
            with in_full(self.network):  # torch has no fast forward mode in less
                slopes = hypergradient(z_and_p, inner, theta, v, omega, self.settings.alpha, tape)
        for w, g in zip(omega, slopes, strict=True):
            w.grad = g
        self._seen["omega_gradient"] = torch.stack([g.norm() for g in slopes]).norm()
        self.similarity_optimiser.step(self.settings.similarity_lr)

    # --------------------------------------------------------------------------------- the frame

    def after_epoch(self, progress: float) -> None:
        """Nothing: pseudo-labels are made within the batch."""

    def figures(self) -> dict[str, float]:
        """What to watch: a similarity net that has collapsed has a spread near 0 and an AUC near 0.5."""
        seen = self._seen
        figures = {"pseudo_labelled": float(seen["pseudo_labelled"])}
        if "omega_gradient" in seen:
            figures["omega_gradient"] = float(seen["omega_gradient"])
        if "similarity" in seen:
            s, y = seen["similarity"], seen["y"]
            off_diagonal = s[~torch.eye(len(s), dtype=torch.bool, device=s.device)]
            figures |= {
                "similarity_mean": float(off_diagonal.mean()),
                "similarity_spread": float(off_diagonal.std()),
                "similarity_auc": pair_auc(s[: len(y), : len(y)].cpu(), y.cpu()),
            }
        return figures

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "similarity": self.similarity.state_dict(),
            "similarity_optimiser": self.similarity_optimiser.state_dict(),
            "average": {} if self.average is None else self.average.network.state_dict(),
            "recent": [] if self.balance is None else [self.balance.recent],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.similarity.load_state_dict(state["similarity"])
        self.similarity_optimiser.load_state_dict(state["similarity_optimiser"])
        if self.average is not None:
            self.average.network.load_state_dict(state["average"])
        if self.balance is not None:
            self.balance.recent = state["recent"][0].to(self.balance.shares)

    @property
    def _bilevel(self) -> bool:
        return self.settings.pair and self.settings.target == "learned"

    def _turn(self, progress: float) -> bool:
        return round(progress * self.steps) % self.settings.every == 0
