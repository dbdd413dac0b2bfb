"""Pure functions of arrays: losses, metrics, clustering, derivatives. Nothing else of ours is imported."""
