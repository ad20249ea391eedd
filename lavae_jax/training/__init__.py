"""Training: what is trained (`tasks`), one step of it (`step`), and the run (`loop`)."""
