"""Compiles the programs of a run for accelerators that this machine does not have.

The package libtpu contains the TPU's own compiler, which runs on any machine. It compiles exactly
the steps that a pod would run. Costs are the compiler's own estimates; a lower bound on the time of
a step follows from them by the roofline model.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from ml_collections import ConfigDict

from lavae_jax.errors import UserError
from lavae_jax.training import step as steps
from lavae_jax.training import tasks
from lavae_jax.training.loop import OneBatch
from lavae_jax.training.phases import Phase


class CompileCheckError(UserError):
    """A program cannot be checked; the message says why and what to do."""


class Chip(NamedTuple):
    """The peak performance of a chip, or of a device where a chip has several.

    Attributes:
        flops: bfloat16 operations per second.
        bandwidth: bytes per second to and from its memory.
        memory: its size in bytes.
    """

    flops: float
    bandwidth: float
    memory: float


# By device_kind. From the pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e" of Cloud TPU's
# documentation.
CHIPS = {
    "TPU v4": Chip(275e12, 1228e9, 32e9),
    "TPU v5 lite": Chip(197e12, 819e9, 16e9),
    "TPU v5": Chip(459e12, 2765e9, 95e9),
    "TPU v6 lite": Chip(918e12, 1640e9, 32e9),
}


class Program(NamedTuple):
    """A program of a run.

    Attributes:
        name: the phase, or "evaluation".
        make: (devices) -> the pmapped function of a step.
        arguments: (number of devices) -> the shapes and types of the step's arguments.
    """

    name: str
    make: Callable[..., Any]
    arguments: Callable[[int], tuple]


class Report(NamedTuple):
    """The costs of one step on each device.

    Attributes:
        seconds: time to compile.
        flops: arithmetic operations.
        bytes_moved: to and from the device's memory.
        bytes_sent: to other devices.
        memory: the size of arguments, results and temporaries, in bytes.
    """

    seconds: float
    flops: float
    bytes_moved: float
    bytes_sent: float
    memory: float

    def least_seconds(self, chip: Chip) -> float:
        """Computes the roofline bound on the time of a step.

        Args:
            chip: the performance of a device; see `chip_of`.

        Returns:
            Seconds for the arithmetic or for the memory traffic, whichever takes longer.
        """
        return max(self.flops / chip.flops, self.bytes_moved / chip.bandwidth)


def programs(config: ConfigDict, canvas: tuple[int, int]) -> Iterator[Program]:
    """Generates the programs of a run: the step of each phase, and the step of the evaluation.

    Args:
        config: the run's config.
        canvas: height and width of the images.

    Yields:
        The programs. Their `arguments` raise a CompileCheckError where the batch size is not a
        multiple of the number of devices.
    """
    task, key = tasks.make(config), jax.random.key(0)
    state = jax.eval_shape(lambda: steps.init_state(task, key))

    def stacked(devices: int, tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((devices, *a.shape), a.dtype), tree)

    def images(devices: int) -> jax.ShapeDtypeStruct:
        if config.batch_size % devices:
            raise CompileCheckError(
                f"config.batch_size={config.batch_size} cannot be split over {devices} devices; "
                f"use a multiple of {devices}"
            )
        each = config.batch_size // devices
        shape = (devices, each, *canvas, config.model.channels)
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def number(devices: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((devices,), jnp.int32)

    def train_arguments(devices: int, phase: Phase) -> tuple:
        x = images(devices)
        batch = {"image": x}
        if phase.prepare:
            zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), state)
            one_device = OneBatch(jnp.zeros(x.shape[1:], x.dtype), varies=False)
            module, saved = task.module((), None), zeros.saved.get(phase.name)
            prepared = phase.prepare(module, steps.variables_of(zeros), one_device, saved)
            batch |= stacked(devices, {**(prepared.cache or {}), **prepared.constants})
        return stacked(devices, state), batch, number(devices)

    def eval_arguments(devices: int) -> tuple:
        x = images(devices)
        batch = {
            "image": x,
            "count": jax.ShapeDtypeStruct(x.shape[:2], jnp.int32),
            "valid": jax.ShapeDtypeStruct(x.shape[:2], bool),
        }
        weights = stacked(devices, (state.params, state.batch_stats))
        return *weights, batch, number(devices)

    for phase in task.phases:
        if phase.steps:
            yield Program(
                phase.name,
                lambda devices, phase=phase: steps.make_train_step(task, phase, key, devices),
                functools.partial(train_arguments, phase=phase),
            )
    yield Program(
        "evaluation", lambda devices: steps.make_eval_step(task, key, devices), eval_arguments
    )


def tpu_devices(topology: str) -> list[Any]:
    """Describes the devices of a TPU topology, which need not exist on this machine.

    Args:
        topology: its name, such as v5e:2x2.

    Returns:
        The devices, as the compiler describes them.

    Raises:
        CompileCheckError: if libtpu is not installed, or has no such topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise CompileCheckError(
            "the TPU's compiler is not installed. Install it into a separate folder, so that "
            "training does not look for a TPU: pip install --target=FOLDER "
            f"'{libtpu_requirement()}', and set PYTHONPATH=FOLDER"
        )
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # only for compilation
    from jax.experimental import topologies  # searches for libtpu

    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    except Exception as error:  # the compiler raises many kinds
        first = str(error).strip().splitlines()[0]
        raise CompileCheckError(
            f"topology {topology!r} is unknown ({first}); expected one such as v5e:2x2 or v4:2x2x4"
        ) from error


def chip_of(devices: Sequence[Any]) -> Chip | None:
    """Looks up the peak performance of a device.

    Args:
        devices: all devices of a topology, of one kind.

    Returns:
        The performance of one device, which is half of the chip's where a chip has two devices;
        None if the kind is not in `CHIPS`.
    """
    chip = CHIPS.get(devices[0].device_kind)
    cores = 1 + max(device.core_on_chip for device in devices)
    return chip and Chip(*(number / cores for number in chip))


def libtpu_requirement() -> str:
    """Finds the libtpu that the installed jax requires.

    Returns:
        A requirement for pip; "libtpu" if jax does not name a version.
    """
    requires = importlib.metadata.requires("jax") or ()
    found = [r.partition(";")[0].strip() for r in requires if r.startswith("libtpu")]
    return found[0] if found else "libtpu"


@contextlib.contextmanager
def _no_compilation_cache() -> Iterator[None]:
    """Disables jax's compilation cache and resets it, since jax reads the setting only once."""
    enabled = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]  # by setattr
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def compile_for(program: Program, devices: Sequence[Any]) -> Report:
    """Compiles a program.

    Args:
        program: the program.
        devices: the devices to compile for; see `tpu_devices`.

    Returns:
        The compiler's estimates of the costs of a step.
    """
    step = program.make(devices)
    lowered = step.lower(*program.arguments(len(devices)))
    with _no_compilation_cache():  # so that compilation is timed
        before = time.monotonic()
        compiled = lowered.compile()
        seconds = time.monotonic() - before
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return Report(
        seconds,
        cost.get("flops", 0.0),
        cost.get("bytes accessed", 0.0),
        bytes_sent(compiled.as_text()),
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
    )


_COLLECTIVE = re.compile(
    r"= (.*?) (?:all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\("
)
_SHAPE = re.compile(r"([a-z]+[0-9]+|pred)\[([0-9,]*)\]")


def bytes_sent(program: str) -> int:
    """Adds up the sizes of the results of all collective operations.

    Args:
        program: the text of a compiled program.

    Returns:
        The number of bytes.
    """
    total = 0
    for line in program.splitlines():
        if found := _COLLECTIVE.search(line):
            for kind, shape in _SHAPE.findall(found.group(1)):
                bits = 8 if kind == "pred" else int(re.sub("[a-z]", "", kind))
                total += bits // 8 * math.prod(int(n) for n in shape.split(",") if n)
    return total


def lower_for(program: Program, platform: str) -> int:
    """Lowers a program for a platform whose compiler is not installed.

    This fails if an operation cannot be lowered.

    Args:
        program: the program.
        platform: jax's name of the platform, such as cuda.

    Returns:
        The number of operations.
    """
    step = jax.jit(program.make(None))
    exported = jax.export.export(step, platforms=[platform])(
        *program.arguments(jax.local_device_count())
    )
    return exported.mlir_module().count("stablehlo.")
