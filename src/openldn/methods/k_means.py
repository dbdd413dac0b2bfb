"""k-means, plain and semi-supervised: nothing is trained."""

from functools import partial

from openldn.maths.k_means import semi_supervised
from openldn.nets.predictors import KMeans
from openldn.training.settings import Hyperparameters
from openldn.training.stage import Stage, System

SYSTEM = System(
    name="k-means",
    about="k-means on pixels, or on frozen features",
    stages=(
        Stage(
            name="k-means",
            objective=None,
            settings=Hyperparameters,
            predictor=KMeans,
            backbone="none",
            evaluations=0,
        ),
    ),
)
SEMI_SUPERVISED = System(
    name="ss-k-means",
    about="k-means on frozen features in which labelled images keep their class",
    paper="Vaze et al., Generalized Category Discovery, CVPR 2022",
    stages=(
        Stage(
            name="ss-k-means",
            objective=None,
            settings=Hyperparameters,
            predictor=partial(KMeans, unit=True, centres=semi_supervised),
            backbone="none",
            frozen=True,
            evaluations=0,
        ),
    ),
)
