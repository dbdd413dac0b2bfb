"""What a user may choose, and the presets that decide the rest. Imports nothing of ours."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

ClosedWorldName = Literal["mixmatch", "uda", "fixmatch", "mean-teacher"]
Target = Literal["learned", "soft-cosine", "hard-cosine", "nearest", "apart"]
Order = Literal["omega-first", "theta-first"]
Attach = Literal["both", "lookahead", "neither"]
Schedule = Literal["constant", "decay", "fall"]
Optimiser = Literal["adam", "muon"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a phase lasts: so many passes over the unlabelled images, more for small sets."""

    epochs: float
    """Passes over the unlabelled images."""
    images: int = 0
    """At least so many unlabelled images are seen, however few there are."""
    budget: float | None = None
    """Instead of both: image passes through the network, 1 forward and 2 backward."""

    def passes(self, n_unlabelled: int) -> float:
        """Passes over that many unlabelled images."""
        return max(self.epochs, self.images / n_unlabelled)

    def part(self, share: float) -> "Length":
        """A share of it."""
        return Length(
            epochs=share * self.epochs,
            images=round(share * self.images),
            budget=None if self.budget is None else share * self.budget,
        )

    def longer(self, passes: float) -> "Length":
        """With so many more image passes, if these are what is counted."""
        return self if self.budget is None else replace(self, budget=self.budget + passes)


@dataclass(frozen=True, kw_only=True)
class Discover:
    """Stage 1: learn the known classes and discover the novel ones."""

    length: Length
    batch: int
    """Labelled and unlabelled images a step; the strong views come on top."""
    composition: Literal["equal", "proportional"]
    """Half of a batch labelled, or as many as there are among all images."""
    lr: float
    schedule: Schedule
    optimiser: Optimiser = "adam"
    """Who makes the steps; muon is for networks with a normalisation after each convolution."""
    similarity_lr: float
    alpha: float
    """Step size of the look-ahead."""
    tau: float = 0.5
    """Confidence at which a weak view's class becomes the strong view's target."""
    views: Literal["weak-strong", "mixed"] = "weak-strong"
    """weak-strong: labels and pairs see weak views, and strong views follow weak ones. mixed: what is learned
    from is weak or strong by chance, labelled or not, and follows what the averaged network says of a weak
    view."""
    ema_steps: int = 100
    """How many steps the averaged network remembers, for mixed views."""
    targets: Literal["own", "balanced"] = "own"
    """What a view follows: the weak view's class, or that when all classes are given their share."""
    order: Order = "omega-first"
    """Which update comes first: of the similarity net Ω, on a virtual step, or of the classifier Θ."""
    attach: Attach = "lookahead"
    """Where the pair loss reaches the features through the similarity net."""
    omega_rows: Literal["all", "few"] = "all"
    """What the similarity net learns from: all rows of a step, or the labelled ones and as many others."""
    every: int = 1
    """The similarity net is updated at every so many steps."""
    target: Target = "learned"
    """Where pair similarities come from."""
    threshold: float = 0.95
    """Cosine above which a pair counts as one class, for the hard-cosine target."""
    pair: bool = True
    """Whether the pair loss is there."""
    entropy: bool = True
    """Whether the entropy term is there."""


@dataclass(frozen=True, kw_only=True)
class Rest:
    """A first stage of minutes: known classes against the rest."""

    length: Length
    most_epochs: float = 6.0
    """However long it may take: after more passes, or `most_images`, it knows by heart who is labelled."""
    most_images: int = 3_000
    batch: int
    """Images a step."""
    often: float = 3.0
    """How many times as often as others labelled images are seen; but at most half of a batch is labelled."""
    lr: float
    schedule: Schedule
    optimiser: Optimiser = "adam"
    growing: bool = True
    """Whether small versions of the images come first."""


@dataclass(frozen=True, kw_only=True)
class Refine:
    """A second stage that goes on with the first one's network."""

    length: Length
    batch: int
    """Images a step."""
    lr: float
    schedule: Schedule
    optimiser: Optimiser = "adam"
    often: float = 2.0
    """How many times as often as others labelled images are seen; but at most half of a batch is labelled."""
    temperature: float = 0.4
    """By what log-probabilities are divided before an image learns from them."""
    mix: float = 0.2
    """Images are mixed with each other by a Beta distribution with this parameter."""
    ema_share: float = 0.05
    """How much of the phase the averaged network remembers."""


@dataclass(frozen=True, kw_only=True)
class ClosedWorld:
    """Stage 2: closed-world training on class-balanced pseudo-labels."""

    length: Length
    batch: int
    """Labelled images a step, and as many unlabelled ones."""
    lr: float
    schedule: Schedule
    optimiser: Optimiser = "adam"
    decay: float = 0.02
    """Weights shrink by this times the learning rate at each step."""
    ema_steps: int = 1000
    """How many steps the averaged model remembers, at most."""
    ema_share: float = 0.05
    """The same as a share of the budget; the smaller one counts."""
    refreshes: int = 0
    """How often pseudo-labels are made anew, evenly over the budget; 0 is never."""
    growing: bool = False
    """Whether small versions of the images come first; pseudo-labels then stay until images are whole."""
    mixmatch_weight: float = 75.0
    """What MixMatch's loss of unlabelled images weighs in the end, beside that of labelled ones."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Any other system: all of them make steps of one size with one optimiser."""

    length: Length
    """Of all stages together; each has its share."""
    batch: int
    """Images a step."""
    lr: float
    schedule: Schedule
    optimiser: Optimiser = "adam"
    ema_share: float = 0.05
    """How much of a stage the averaged network remembers, where there is one."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A whole set of decisions."""

    backbone: str
    discover: Discover
    rest: Rest
    refine: Refine
    closed_world: ClosedWorld
    training: Training
    share: float
    """Of a length or budget, the share that goes to what comes before a second stage."""
    mirrored: bool
    """Whether a network is asked about an image and its mirror image, where that shows the same thing."""
    largest: int
    """Pixels that larger images from files are brought down to, unless a size is given."""

    @property
    def alone(self) -> ClosedWorld:
        """For known classes alone there is nothing to make pseudo-labels of novel ones from."""
        return replace(self.closed_world, refreshes=0)


PRESETS: dict[str, Preset] = {
    # The paper's and the authors' numbers. Stage 2: 1024 x 1024 steps of 64, refreshed about every 10 x 1024.
    "paper": Preset(
        backbone="resnet18",
        discover=Discover(
            length=Length(epochs=50),
            batch=200,
            composition="equal",
            lr=5e-4,
            schedule="constant",
            similarity_lr=1e-4,
            alpha=1e-3,
        ),
        rest=Rest(length=Length(epochs=3), batch=200, lr=5e-4, schedule="constant"),
        refine=Refine(length=Length(epochs=50), batch=200, lr=1e-4, schedule="constant"),
        closed_world=ClosedWorld(
            length=Length(epochs=0, images=64 * 1024 * 1024),
            batch=64,
            lr=2e-3,
            schedule="constant",
            refreshes=102,
        ),
        training=Training(length=Length(epochs=200), batch=256, lr=5e-4, schedule="decay"),
        share=0.5,
        mirrored=False,
        largest=224,
    ),
    # What works in minutes on two cores for small images; docs/fidelity.md says how it was chosen.
    "fast": Preset(
        backbone="small",
        discover=Discover(
            length=Length(epochs=8, images=45_000),
            batch=100,
            composition="proportional",
            lr=2e-3,
            schedule="decay",
            optimiser="muon",
            similarity_lr=1e-3,
            alpha=1e-3,
            order="theta-first",
            omega_rows="few",
            every=4,
        ),
        rest=Rest(
            length=Length(epochs=6, images=3_000), batch=100, lr=2e-3, schedule="decay", optimiser="muon"
        ),
        refine=Refine(
            length=Length(epochs=6, images=45_000), batch=125, lr=5e-4, schedule="fall", optimiser="muon"
        ),
        closed_world=ClosedWorld(
            length=Length(epochs=8, images=45_000),
            batch=64,
            lr=2e-3,
            schedule="decay",
            optimiser="muon",
            refreshes=10,
            growing=True,
            mixmatch_weight=10.0,
        ),
        training=Training(
            length=Length(epochs=16, images=90_000), batch=100, lr=2e-3, schedule="decay", optimiser="muon"
        ),
        share=0.5,
        mirrored=True,
        largest=32,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen for a run. What is left out (None) is decided by the preset."""

    novel: int | Literal["auto"] | None = None
    """Number of novel classes, or auto to estimate it (default: auto; for a named set, its own number)."""
    method: str = "openldn-uda"
    """The system, as `openldn systems` lists them; SYSTEM+uda (or mixmatch, fixmatch, mean-teacher) goes on
    with closed-world training on what that system has found."""
    preset: Literal["fast", "paper"] = "fast"
    """fast: minutes on a CPU. paper: the paper's settings and lengths, days on a GPU."""
    epochs: float | None = None
    """Passes over the unlabelled images in all; every ramp and refresh follows."""
    budget: float | None = None
    """Instead of epochs: image passes through the network in all (forward 1, backward 2), pretraining
    included, but not what it takes to estimate the number of novel classes; every ramp and refresh
    follows."""
    seed: int = 0
    """Seed of all that is random."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute."""
    precision: Precision | None = None
    """In which numbers networks compute: float32, or bfloat16 (default: what is faster on the machine)."""
    backbone: str | None = None
    """small, medium (twice as wide, four times as slow), resnet18 or resnet50."""
    size: int | None = None
    """Pixels that images from files are brought to (default: chosen from the images, at most 32 in the
    fast preset, but square ones that are all alike stay as they are up to 64)."""
    flip: bool | None = None
    """Whether a mirrored image shows the same thing (default: yes, but not for digits)."""
    known: float = 0.5
    """Of a named set's classes, the share that is known."""
    labelled: float = 0.5
    """Of a named set's known images, the share that is labelled."""
    split: str | None = None
    """The split.json of another run: the same images are labelled."""
    images: int | None = None
    """Of a named set's training images, take only so many, evenly from all classes."""
    data_dir: str | None = None
    """Where named sets are kept (default: $OPENLDN_DATA, else the user's cache)."""
    save_every: float = 60.0
    """Seconds between checkpoints."""
    evaluations: int | None = None
    """Where the truth is known: how often a stage is judged at most, at its end and on the way (default: the
    stage's own number, ten for most)."""
    pair: bool = True
    """Ablation: the pair loss of stage 1."""
    entropy: bool = True
    """Ablation: the entropy term of stage 1."""
    target: Target | None = None
    """Ablation: where pair similarities come from; apart is a control that takes all pairs as unlike."""
    threshold: float | None = None
    """For the hard-cosine target: the cosine above which a pair counts as one class."""
    order: Order | None = None
    """Stage 1's order of updates: omega-first (the authors' code) or theta-first (the paper)."""
    attach: Attach | None = None
    """Where the pair loss reaches features through the similarity net: both (the paper's equations),
    lookahead (the authors' code) or neither."""
    ood_rate: float | None = None
    """For systems that know the known classes alone: the share of unlabelled images to call novel (default:
    what it would be if all classes were equally frequent)."""
    refreshes: int | None = None
    """How often stage 2 makes its pseudo-labels anew; 0 is never."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that was decided, as `config.json` records it."""

    method: str
    preset: str
    seed: int
    device: str
    precision: Precision
    backbone: str
    mirrored: bool
    discover: Discover
    rest: Rest
    refine: Refine
    closed_world: ClosedWorld
    alone: ClosedWorld
    training: Training
    ood_rate: float | None

    def to_json(self) -> dict[str, Any]:
        """As plain dictionaries."""
        return asdict(self)

    def for_any_backbone(self) -> "Settings":
        """The same for a network that is not ours, of which nothing is known.

        Its convolutions may not be normalised, so Muon is not for it, and it may take images of one size
        alone.
        """
        changed = {name: replace(getattr(self, name), optimiser="adam") for name in STAGES}
        for name in ("rest", "closed_world", "alone"):
            changed[name] = replace(changed[name], growing=False)
        return replace(self, backbone="custom", **changed)

    @staticmethod
    def from_json(record: dict[str, Any]) -> "Settings":
        """The inverse of `to_json`."""
        record = {"alone": record["closed_world"]} | record  # runs of old do not have it
        read = {
            name: stage(**record[name] | {"length": Length(**record[name]["length"])})
            for name, stage in STAGES.items()
        }
        return Settings(**record | read)


STAGES = {
    "discover": Discover,
    "rest": Rest,
    "refine": Refine,
    "closed_world": ClosedWorld,
    "alone": ClosedWorld,
    "training": Training,
}


def decide(options: Options, *, parts: Sequence[str]) -> Settings:
    """The preset, changed as the options say, for a system of these parts, one or more."""
    preset = PRESETS[options.preset]
    chosen: dict[str, Any] = {name: getattr(preset, name) for name in STAGES}
    chosen["discover"] = replace(
        preset.discover,
        pair=options.pair,
        entropy=options.entropy,
        **_given(target=options.target, threshold=options.threshold),
        **_given(order=options.order, attach=options.attach),
    )
    chosen["closed_world"] = replace(preset.closed_world, **_given(refreshes=options.refreshes))
    # What comes before the last part shares alike.
    before = preset.share / max(1, len(parts) - 1)
    shared = dict.fromkeys(parts[:-1], before) | {parts[-1]: 1 - before * (len(parts) - 1)}
    if options.epochs is not None or options.budget is not None:
        whole = Length(epochs=options.epochs or 0.0, budget=options.budget)
        for name, stage in chosen.items():
            chosen[name] = replace(stage, length=whole.part(shared.get(name, 1.0)))
    elif len(parts) > 1:  # lengths of the others are each stage's own
        training = chosen["training"]
        chosen["training"] = replace(training, length=training.length.part(preset.share))
    return Settings(
        method=options.method,
        preset=options.preset,
        seed=options.seed,
        device=options.device,
        precision=options.precision or "float32",
        backbone=options.backbone or preset.backbone,
        mirrored=preset.mirrored,
        ood_rate=options.ood_rate,
        **chosen,
    )


def _given(**choices: Any) -> dict[str, Any]:
    return {name: choice for name, choice in choices.items() if choice is not None}
