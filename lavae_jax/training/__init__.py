"""Training: the tasks (`tasks`), a single training step (`step`) and the training loop (`loop`)."""
