"""Phases: a curriculum is a sequence of them.

A phase has a length, a loss, which is a function of the bound module, and the learning rates of the
parts that it trains. It starts after all steps of the phases before it. Within a phase, steps count
from its own first step.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from lavae_jax.scene import Scene

Metrics = dict[str, jax.Array]


class TrainingImages(Protocol):
    """All training images in order.

    Attributes:
        varies: whether images differ from one pass to the next, as random crops do.
        is_sample: whether these are a few images instead of all, for timing.
    """

    varies: bool
    is_sample: bool

    def batches(self, reading: int = 0) -> Iterator[np.ndarray]:
        """Reads all images.

        Args:
            reading: the index of this pass; images that vary, such as random crops, depend on it.

        Yields:
            Batches [B, H, W, C] of one size; the last one is padded.
        """

    def __len__(self) -> int: ...


class Prepared(NamedTuple):
    """What a phase prepares before its first step.

    Attributes:
        params: parts of the parameters that the phase begins with, by their paths.
        saved: what a resumed run needs to repeat the preparation, in the shapes of `Phase.saved`.
        cache: arrays [N, ...] for all training images; the loss is given the batch's part of each
            by name.
        constants: arrays that the loss is given unchanged, by name.
    """

    params: Mapping[str, Any] = MappingProxyType({})
    saved: Any = None
    cache: dict[str, Any] | None = None
    constants: Mapping[str, Any] = MappingProxyType({})


class Phase(NamedTuple):
    """A part of training with a loss of its own.

    Attributes:
        name: its name, by which config.curriculum refers to it.
        steps: the number of its steps; 0 leaves it out.
        loss: (module, x, keys, step, **prepared) -> the loss and metrics, means over the images x
            [B, H, W, C]. `step` is the number of steps completed in this phase so far, and
            `prepared` are the constants and the batch's part of the cache.
        learning_rates: a schedule for each part that is trained, by the part's path in the tree of
            parameters, such as "lavae.location". Other parts are frozen: they have no gradient and
            no optimiser, and use their batch statistics without changing them.
        prepare: (module, variables, images, saved, cache) -> what is computed before the phase: the
            outputs of frozen parts for the training images, so that they need not be computed at
            each step, and parameters that the phase begins with. `saved` is None when the phase
            begins; when a run resumes within the phase, it is what was saved at the beginning.
            `cache` is that of the previous phase, if it is in memory.
        saved: the initial value of what `prepare` saves, in the same shapes.
    """

    name: str
    steps: int
    loss: Callable[..., tuple[jax.Array, Metrics]]
    learning_rates: Mapping[str, optax.Schedule]
    prepare: Callable[..., Prepared] | None = None
    saved: Any = None


class Reconstruction(NamedTuple):
    """Images as a model reconstructs them, to be drawn.

    Attributes:
        means: pixel means, [B, H, W, C].
        scene: the inferred scenes, if the model infers objects.
        sprites: the sprites of the scenes' objects, [B, M, h, w, C].
    """

    means: jax.Array
    scene: Scene | None = None
    sprites: jax.Array | None = None


class Task(NamedTuple):
    """A model and its training.

    Attributes:
        module: (train, axis_name) -> the module whose parts `train` are being trained.
        phases: the phases, in order.
        evaluate: (module, x, count, keys) -> metrics of each image, [B] each, or `Masked` for those
            that are defined for some images only; count may be None.
        reconstruct: (module, x) -> the reconstructions of images.
    """

    module: Callable[[tuple[str, ...], str | None], nn.Module]
    phases: tuple[Phase, ...]
    evaluate: Callable[..., dict[str, Any]]
    reconstruct: Callable[..., Reconstruction]

    @property
    def num_steps(self) -> int:
        """The steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def start_of(self, phase: Phase) -> int:
        """Counts the steps before a phase.

        Args:
            phase: the phase.

        Returns:
            The number of steps.
        """
        names = [p.name for p in self.phases]
        return sum(p.steps for p in self.phases[: names.index(phase.name)])

    def end_of(self, phase: Phase) -> int:
        """Counts the steps until the end of a phase.

        Args:
            phase: the phase.

        Returns:
            The number of steps.
        """
        return self.start_of(phase) + phase.steps

    def phase_after(self, step: int) -> Phase:
        """Finds the phase of the next step.

        Args:
            step: steps completed so far, fewer than `num_steps`.

        Returns:
            The phase.
        """
        return next(phase for phase in self.phases if step < self.end_of(phase))

    def is_boundary(self, step: int) -> bool:
        """Checks whether a phase begins or ends at a step.

        Args:
            step: steps completed so far.

        Returns:
            Whether that is the beginning or the end of a phase.
        """
        return step == 0 or step in map(self.end_of, self.phases)


def make(config: ConfigDict, constructors: Mapping[str, Callable[..., Phase]]) -> tuple[Phase, ...]:
    """Makes the phases of a config.

    Args:
        config: the run's config, whose curriculum.phases names the phases in order.
        constructors: makes a phase from the config, by the phase's name.

    Returns:
        The phases in that order.

    Raises:
        ValueError: if a name is unknown or repeated, or settings of a phase are invalid.
    """
    names = tuple(config.curriculum.phases)
    for name in names:
        if name not in constructors or names.count(name) > 1:
            raise ValueError(
                f"config.curriculum.phases={names}: {name!r} is unknown or repeated; expected each "
                f"of {', '.join(constructors)} at most once"
            )
    return tuple(constructors[name](config) for name in names)


def gather(batches: list[Any], size: int) -> Any:
    """Joins the arrays of batches, without padding.

    Args:
        batches: trees of arrays [B, ...], one for each batch.
        size: N, the number of examples.

    Returns:
        The tree with arrays [N, ...].
    """
    return jax.tree.map(lambda *rows: np.concatenate(rows)[:size], *batches)
