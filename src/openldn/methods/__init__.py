"""One system a file: hyperparameters, losses, head, predictor, stages."""
