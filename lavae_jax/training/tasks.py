"""What a config trains: LAVAE, or the baseline."""

from ml_collections import ConfigDict

from lavae_jax.training import baseline, curricula
from lavae_jax.training.phases import Task

TASKS = {"lavae": curricula.task, "baseline": baseline.task}


def make(config: ConfigDict) -> Task:
    """The task of a config; a ValueError says what is wrong with it."""
    if config.kind not in TASKS:
        raise ValueError(f"config.kind={config.kind!r}: expected one of {', '.join(TASKS)}")
    return TASKS[config.kind](config)
