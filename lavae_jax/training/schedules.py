"""Schedules of everything that changes during training (App. B)."""

import optax
from ml_collections import ConfigDict


def temperature(config: ConfigDict) -> optax.Schedule:
    """Makes the schedule of τ, which falls exponentially and then stays constant.

    Args:
        config: `start`, `end` and the number of `steps` between them.

    Returns:
        τ as a function of the step.
    """
    start, end, steps = config.start, config.end, config.steps
    return optax.exponential_decay(start, steps, end / start, end_value=end)


def auxiliary_weight(warmup: ConfigDict) -> optax.Schedule:
    """Makes the schedule of the auxiliary loss's weight.

    It is constant at first, and falls linearly to 0 while the warm-up is annealed.

    Args:
        warmup: the settings of the warm-up: `auxiliary_weight`, `steps` and `anneal_steps`.

    Returns:
        The weight as a function of the step.

    Raises:
        ValueError: if anneal_steps is more than steps.
    """
    return _annealed(warmup, warmup.auxiliary_weight, 0.0)


def force_one(warmup: ConfigDict) -> optax.Schedule:
    """Makes the schedule of the probability that n is forced to 1.

    It is 1 at first, and falls linearly while the warm-up is annealed.

    Args:
        warmup: the settings of the warm-up: `force_one_end`, `steps` and `anneal_steps`.

    Returns:
        The probability as a function of the step.

    Raises:
        ValueError: if anneal_steps is more than steps.
    """
    return _annealed(warmup, 1.0, warmup.force_one_end)


def _annealed(warmup: ConfigDict, start: float, end: float) -> optax.Schedule:
    """Constant until the last `anneal_steps` of the warm-up, then linear."""
    constant = warmup.steps - warmup.anneal_steps
    if constant < 0:
        raise ValueError(
            f"config.curriculum.warmup.anneal_steps={warmup.anneal_steps} must be at most "
            f"config.curriculum.warmup.steps={warmup.steps}, which include the annealing"
        )
    # With 0 steps, optax would never leave `start`.
    return optax.linear_schedule(start, end, max(warmup.anneal_steps, 1), constant)


def beta(config: ConfigDict) -> optax.Schedule:
    """Makes the schedule of the weight of the baseline's KL, which is linear and then constant.

    Args:
        config: `start`, `end` and the number of `steps` between them.

    Returns:
        β as a function of the step.
    """
    return optax.linear_schedule(config.start, config.end, max(config.steps, 1))


def exponential(config: ConfigDict) -> optax.Schedule:
    """Makes a learning rate that falls exponentially: times decay_rate every decay_steps steps.

    Args:
        config: `learning_rate`, `decay_rate` and `decay_steps`.

    Returns:
        The learning rate as a function of the step.
    """
    return optax.exponential_decay(config.learning_rate, config.decay_steps, config.decay_rate)


def cosine(config: ConfigDict) -> optax.Schedule:
    """Makes the learning rate of a phase, which falls to 0 along half a cosine.

    Args:
        config: the settings of the phase: `learning_rate` and `steps`.

    Returns:
        The learning rate as a function of the step in the phase.
    """
    return optax.cosine_decay_schedule(config.learning_rate, max(config.steps, 1))


def learning_rate(config: ConfigDict, steps: int) -> optax.Schedule:
    """Makes the learning rate of a whole run, constant or along half a cosine.

    Args:
        config: `learning_rate` and `schedule`, "constant" or "cosine".
        steps: the steps of the run, at whose end the cosine reaches 0.

    Returns:
        The learning rate as a function of the step.

    Raises:
        ValueError: if the schedule is unknown.
    """
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
    """Makes a schedule that continues another one from a given step.

    Args:
        start: the step from which it continues.
        schedule: the whole schedule.

    Returns:
        The schedule as a function of the steps since `start`.
    """
    return lambda step: schedule(step + start)
