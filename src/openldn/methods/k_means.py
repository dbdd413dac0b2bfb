"""k-means on pixels: no network, no training."""

from openldn.nets.predictors import KMeans
from openldn.training.stage import Stage, System

SYSTEM = System(
    name="k-means",
    about="k-means on pixels",
    stages=(Stage(name="k-means", objective=None, predictor=KMeans, backbone="pixels", evaluations=0),),
)
