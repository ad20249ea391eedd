"""Everything that changes during training, as functions of the step (App. B)."""

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
    return optax.linear_schedule(start, end, max(config.anneal_steps, 1), config.steps)


def beta(config: ConfigDict) -> optax.Schedule:
    """The weight of the baseline's KL, linear from start to end."""
    return optax.linear_schedule(config.start, config.end, max(config.steps, 1))


def location_learning_rate(config: ConfigDict) -> optax.Schedule:
    """Falling exponentially, by location_decay_rate in location_decay_steps."""
    return optax.exponential_decay(
        config.location_learning_rate, config.location_decay_steps, config.location_decay_rate
    )


def cosine(rate: float, steps: int) -> optax.Schedule:
    """A learning rate that falls to 0 along half a cosine; constant if `steps` is 0."""
    return optax.cosine_decay_schedule(rate, steps) if steps else optax.constant_schedule(rate)


def join(*pieces: tuple[int, optax.Schedule]) -> optax.Schedule:
    """0, and from each given step on a schedule that counts from there."""
    boundaries, schedules = zip(*pieces, strict=True)
    return optax.join_schedules([optax.constant_schedule(0.0), *schedules], boundaries)
