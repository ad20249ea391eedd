"""Estimates how long a run will take, from a few timed steps of each of its phases."""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from lavae_jax.training.phases import Phase, Task

TIMED_SECONDS = 0.5  # for how long a step is repeated
CALLS_OF_SEVERAL = 3  # timed calls if there are several processes, whose clocks may differ


class PhaseForecast(NamedTuple):
    """The rest of a phase.

    Attributes:
        name: the phase.
        steps: the number of remaining steps.
        seconds_per_step: the time of a step on this machine.
        preparation: seconds before the first step.
    """

    name: str
    steps: int
    seconds_per_step: float
    preparation: float

    @property
    def seconds(self) -> float:
        """Seconds for the preparation and all steps."""
        return self.preparation + self.steps * self.seconds_per_step


class Forecast(NamedTuple):
    """The rest of a run.

    Attributes:
        phases: the remaining phases.
        evaluation: seconds of one evaluation.
    """

    phases: tuple[PhaseForecast, ...]
    evaluation: float

    def seconds(self, evaluations: int, after: str | None = None) -> float:
        """Estimates the remaining time.

        Args:
            evaluations: the number of remaining evaluations.
            after: count only the phases after the one with this name; None for all phases.

        Returns:
            Seconds of the phases and of the evaluations.
        """
        names = [phase.name for phase in self.phases]
        first = names.index(after) + 1 if after else 0
        return sum(p.seconds for p in self.phases[first:]) + evaluations * self.evaluation


def phases_left(task: Task, step: int, end: int) -> list[tuple[Phase, int]]:
    """Splits the rest of a run into phases.

    Args:
        task: the model and its phases.
        step: steps completed so far.
        end: steps of the whole run.

    Returns:
        The remaining phases, each with the number of its remaining steps.
    """
    left = []
    for phase in task.phases:
        steps = min(end, task.end_of(phase)) - max(step, task.start_of(phase))
        if steps > 0:
            left.append((phase, steps))
    return left


def evaluations_left(every: int, step: int, end: int) -> int:
    """Counts the remaining evaluations.

    Args:
        every: steps between evaluations; there is another one at the end. 0 for none at all.
        step: steps completed so far.
        end: steps of the whole run.

    Returns:
        The number of evaluations.
    """
    if not every or step >= end:
        return 0
    return end // every - step // every + (end % every != 0)


def seconds_of(call: Callable[..., Any], argument: Any = None) -> float:
    """Times a function, each call of which is given the previous result.

    The first call compiles and is not timed. Several processes, whose steps wait for each other,
    all make the same number of calls; a single process repeats calls for `TIMED_SECONDS`.

    Args:
        call: the function.
        argument: the argument of the first call.

    Returns:
        Seconds per call.
    """
    several = jax.process_count() > 1
    argument = jax.block_until_ready(call(argument))
    started = time.perf_counter()
    for calls in itertools.count(1):
        argument = jax.block_until_ready(call(argument))
        seconds = time.perf_counter() - started
        if calls == CALLS_OF_SEVERAL if several else seconds >= TIMED_SECONDS:
            return seconds / calls
    raise AssertionError("itertools.count does not end")
