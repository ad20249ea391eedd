"""How long a run will take on this machine, from a few steps of each of its phases."""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from lavae_jax.training.phases import Phase, Task

TIMED_SECONDS = 0.5  # for which a step is repeated
CALLS_OF_SEVERAL = 3  # processes, whose clocks may differ


class PhaseForecast(NamedTuple):
    """What is left of a phase."""

    name: str
    steps: int
    seconds_per_step: float
    preparation: float  # seconds before its first step

    @property
    def seconds(self) -> float:
        return self.preparation + self.steps * self.seconds_per_step


class Forecast(NamedTuple):
    """What is left of a run."""

    phases: tuple[PhaseForecast, ...]
    evaluation: float  # seconds of one

    def seconds(self, evaluations: int, after: str | None = None) -> float:
        """Of all phases, or of those after the one with that name, and of the evaluations."""
        names = [phase.name for phase in self.phases]
        first = names.index(after) + 1 if after else 0
        return sum(p.seconds for p in self.phases[first:]) + evaluations * self.evaluation


def phases_left(task: Task, step: int, end: int) -> list[tuple[Phase, int]]:
    """The phases of the steps from `step` to `end`, and how many of these steps each has."""
    left = []
    for phase in task.phases:
        steps = min(end, task.end_of(phase)) - max(step, task.start_of(phase))
        if steps > 0:
            left.append((phase, steps))
    return left


def evaluations_left(every: int, step: int, end: int) -> int:
    """Every so many steps and at the end; none if that is 0."""
    if not every or step >= end:
        return 0
    return end // every - step // every + (end % every != 0)


def seconds_of(call: Callable[[Any], Any], argument: Any = None) -> float:
    """Seconds per call. Each call is given the previous result.

    The first call compiles and is not timed. Several processes, whose steps wait for
    each other, make the same number of calls; one makes as many as fit into TIMED_SECONDS.
    """
    several = jax.process_count() > 1
    argument = jax.block_until_ready(call(argument))
    started = time.perf_counter()
    for calls in itertools.count(1):
        argument = jax.block_until_ready(call(argument))
        seconds = time.perf_counter() - started
        if calls == CALLS_OF_SEVERAL if several else seconds >= TIMED_SECONDS:
            return seconds / calls
