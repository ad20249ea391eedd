"""Everything that changes during training, as functions of the steps made so far (App. B)."""

import optax
from ml_collections import ConfigDict


def temperature(config: ConfigDict) -> optax.Schedule:
    """τ, falling exponentially from start to end, then constant."""
    start, end, steps = config.start, config.end, config.steps
    return optax.exponential_decay(start, steps, end / start, end_value=end)


def auxiliary_weight(config: ConfigDict) -> optax.Schedule:
    """Full during warm-up, then linearly to 0."""
    return _after_warmup(config, config.auxiliary_weight, 0.0)


def force_one(config: ConfigDict) -> optax.Schedule:
    """The probability that n is forced to 1: 1 during warm-up, then linearly to its end."""
    return _after_warmup(config, 1.0, config.force_one_end)


def _after_warmup(config: ConfigDict, start: float, end: float) -> optax.Schedule:
    """Constant during warm-up, then linear; optax takes 0 steps for never."""
    return optax.linear_schedule(start, end, max(config.anneal_steps, 1), config.warmup_steps)


def beta(config: ConfigDict) -> optax.Schedule:
    """The weight of the baseline's KL, linear from start to end."""
    return optax.linear_schedule(config.start, config.end, max(config.steps, 1))


def exponential(config: ConfigDict) -> optax.Schedule:
    """A learning rate that falls exponentially, by decay_rate in decay_steps."""
    return optax.exponential_decay(config.learning_rate, config.decay_steps, config.decay_rate)


def cosine(rate: float, steps: int) -> optax.Schedule:
    """A learning rate that falls to 0 along half a cosine; constant if `steps` is 0."""
    return optax.cosine_decay_schedule(rate, steps) if steps else optax.constant_schedule(rate)


def starting_at(start: int, schedule: optax.Schedule) -> optax.Schedule:
    """A schedule that counts its steps from `start` on."""
    return lambda step: schedule(step - start)
