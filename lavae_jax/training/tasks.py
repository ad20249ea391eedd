"""The task that a config describes: training LAVAE or training the baseline."""

from ml_collections import ConfigDict

from lavae_jax.training import baseline, curricula
from lavae_jax.training.phases import Task

TASKS = {"lavae": curricula.task, "baseline": baseline.task}


def make(config: ConfigDict) -> Task:
    """Makes the task of a config.

    Args:
        config: the run's config, with `kind`, a key of `TASKS`.

    Returns:
        The model and its phases.

    Raises:
        ValueError: if a setting is invalid.
    """
    if config.kind not in TASKS:
        raise ValueError(f"config.kind={config.kind!r}: expected one of {', '.join(TASKS)}")
    return TASKS[config.kind](config)
