"""Phases: a curriculum is a list of them, one after the other.

A phase has a length, a loss, which is a function of the bound module, and the learning rates of
the parts that it trains. Where it starts follows from the lengths of those before it. Inside a
phase, steps count from its own first step.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import numpy as np
import optax

from lavae_jax.model import Variables
from lavae_jax.scene import Scene

Metrics = dict[str, jax.Array]


class TrainingImages(Protocol):
    """All training images in order."""

    varies: bool  # whether an example differs from one reading to the next, as random crops do
    is_sample: bool  # whether these are a few that stand for all, to see how long a step takes

    def batches(self, reading: int = 0) -> Iterator[np.ndarray]:
        """Batches [B, H, W, C] of one size; the last one is padded. Images that vary are others in
        each reading."""

    def __len__(self) -> int: ...


class Prepared(NamedTuple):
    """What a phase prepares before its first step.

    params: parts of the parameters, by their paths, that the phase begins with.
    saved: what a resumed run needs to prepare the same cache again; as `Phase.saved`.
    cache: arrays [N, ...] for all training images. The loss is given those of its batch by name.
    constants: arrays that the loss is given as they are, by name.
    """

    params: Mapping[str, Any] = MappingProxyType({})
    saved: Any = None
    cache: dict[str, Any] | None = None
    constants: Mapping[str, Any] = MappingProxyType({})


class Phase(NamedTuple):
    """A stretch of training.

    steps: how many it has; 0 leaves it out.
    loss(module, x, keys, step, **prepared) -> the loss and metrics, means over the images x
        [B, H, W, C]; `step` is the number of steps made in this phase before, and `prepared` are
        the constants and the batch's part of the cache.
    learning_rates: a schedule for each part that is trained, by the part's path in the tree
        of parameters, such as "lavae.location". Other parts are frozen: they have no
        gradient and no optimiser, and use their batch statistics without changing them.
    prepare(module, variables, images, saved, cache) -> what frozen parts make of the training
        images, computed once instead of at each step, and parameters that the phase begins with.
        `saved` is None when the phase begins, and what was saved then when a run resumes in it.
        `cache` is that of the phase before, if there is one in memory.
    saved: the initial value, which has the shapes of what `prepare` saves.
    """

    name: str
    steps: int
    loss: Callable[..., tuple[jax.Array, Metrics]]
    learning_rates: Mapping[str, optax.Schedule]
    prepare: Callable[[nn.Module, Variables, TrainingImages, Any], Prepared] | None = None
    saved: Any = None


class Reconstruction(NamedTuple):
    """Images as a model sees them, to be drawn."""

    means: jax.Array  # [B, H, W, C]
    scene: Scene | None = None
    sprites: jax.Array | None = None  # [B, M, h, w, C]


class Task(NamedTuple):
    """A model and its training.

    module(train, axis_name) -> the module whose parts `train` are being trained.
    phases: one after the other.
    evaluate(module, x, count, keys) -> metrics of each image, [B] each, or `Masked` where not
        every image has them; count may be None.
    reconstruct(module, x) -> images as the model sees them.
    """

    module: Callable[[tuple[str, ...], str | None], nn.Module]
    phases: tuple[Phase, ...]
    evaluate: Callable[..., dict[str, Any]]
    reconstruct: Callable[..., Reconstruction]

    @property
    def num_steps(self) -> int:
        """Of all phases."""
        return sum(phase.steps for phase in self.phases)

    def start_of(self, phase: Phase) -> int:
        """The number of steps before a phase."""
        names = [p.name for p in self.phases]
        return sum(p.steps for p in self.phases[: names.index(phase.name)])

    def end_of(self, phase: Phase) -> int:
        """The number of steps until the end of a phase."""
        return self.start_of(phase) + phase.steps

    def phase_after(self, step: int) -> Phase:
        """The phase of the step that follows `step` others."""
        return next(phase for phase in self.phases if step < self.end_of(phase))

    def is_boundary(self, step: int) -> bool:
        """Whether a phase begins or ends after `step` steps."""
        return step == 0 or step in map(self.end_of, self.phases)


def make(
    config: Mapping[str, Any], constructors: Mapping[str, Callable[..., Phase]]
) -> tuple[Phase, ...]:
    """The phases that config.curriculum.phases names, in that order."""
    names = tuple(config.curriculum.phases)
    for name in names:
        if name not in constructors or names.count(name) > 1:
            raise ValueError(
                f"config.curriculum.phases={names}: {name!r} is unknown or repeated; expected each "
                f"of {', '.join(constructors)} at most once"
            )
    return tuple(constructors[name](config) for name in names)


def gather(batches: list[Any], size: int) -> Any:
    """Arrays [N, ...] of all examples out of those of batches [B, ...], without padding."""
    return jax.tree.map(lambda *rows: np.concatenate(rows)[:size], *batches)
