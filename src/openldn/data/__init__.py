"""From what a user has to batches."""
