"""k-means on pixels, or on features of a frozen network; nothing is trained."""

from openldn.nets.predictors import KMeans
from openldn.training.stage import Stage, System

SYSTEM = System(
    name="k-means",
    about="k-means on pixels, or on frozen features",
    stages=(Stage(name="k-means", objective=None, predictor=KMeans, backbone="none", evaluations=0),),
)
