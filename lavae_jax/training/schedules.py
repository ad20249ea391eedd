"""Everything that changes during training, as functions of a number of steps (App. B)."""

import optax
from ml_collections import ConfigDict


def temperature(config: ConfigDict) -> optax.Schedule:
    """τ, falling exponentially from start to end, then constant."""
    start, end, steps = config.start, config.end, config.steps
    return optax.exponential_decay(start, steps, end / start, end_value=end)


def auxiliary_weight(warmup: ConfigDict) -> optax.Schedule:
    """Full at first, then linearly to 0 while the warm-up is annealed."""
    return _annealed(warmup, warmup.auxiliary_weight, 0.0)


def force_one(warmup: ConfigDict) -> optax.Schedule:
    """The probability that n is forced to 1: 1 at first, then linearly to its end."""
    return _annealed(warmup, 1.0, warmup.force_one_end)


def _annealed(warmup: ConfigDict, start: float, end: float) -> optax.Schedule:
    """Constant until the last `anneal_steps` of the warm-up, then linear."""
    constant = warmup.steps - warmup.anneal_steps
    if constant < 0:
        raise ValueError(
            f"config.curriculum.warmup.anneal_steps={warmup.anneal_steps} is more than its "
            f"steps={warmup.steps}, which include them"
        )
    # optax takes 0 steps for never.
    return optax.linear_schedule(start, end, max(warmup.anneal_steps, 1), constant)


def beta(config: ConfigDict) -> optax.Schedule:
    """The weight of the baseline's KL, linear from start to end."""
    return optax.linear_schedule(config.start, config.end, max(config.steps, 1))


def exponential(config: ConfigDict) -> optax.Schedule:
    """A learning rate that falls exponentially, by decay_rate in decay_steps."""
    return optax.exponential_decay(config.learning_rate, config.decay_steps, config.decay_rate)


def cosine(config: ConfigDict) -> optax.Schedule:
    """The learning rate of a phase, which falls to 0 along half a cosine."""
    return optax.cosine_decay_schedule(config.learning_rate, max(config.steps, 1))


def learning_rate(config: ConfigDict, steps: int) -> optax.Schedule:
    """The learning rate of a whole run of that many steps, constant or half a cosine."""
    schedules = {
        "constant": optax.constant_schedule,
        "cosine": lambda rate: optax.cosine_decay_schedule(rate, max(steps, 1)),
    }
    if config.schedule not in schedules:
        raise ValueError(
            f"config.optimizer.schedule={config.schedule!r}: expected one of {', '.join(schedules)}"
        )
    return schedules[config.schedule](config.learning_rate)


def after(start: int, schedule: optax.Schedule) -> optax.Schedule:
    """What is left of a schedule after `start` steps."""
    return lambda step: schedule(step + start)
