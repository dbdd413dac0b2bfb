"""Networks: backbones, the classifier on top of one, the pair-similarity net."""
