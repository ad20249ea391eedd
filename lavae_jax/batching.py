"""Applies functions of a model to arrays of any length, in batches on all local devices."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from lavae_jax import model
from lavae_jax.model import Variables


def is_traced(tree: Any) -> bool:
    """Checks whether any array is traced: under jit, all of them are; under grad, some.

    Args:
        tree: a tree of arrays.

    Returns:
        Whether one is.
    """
    return any(
        isinstance(leaf, jax.core.Tracer) for leaf in (*jax.tree.leaves(tree), jnp.zeros(()))
    )


@functools.lru_cache(maxsize=64)
def _on_devices(function: Callable, module: nn.Module, num_inputs: int) -> Callable:
    """function(module, *inputs) on every local device, compiled."""
    in_axes = (None, *[0] * num_inputs)
    return jax.pmap(model.bind(function, module), in_axes=in_axes, devices=jax.local_devices())


def in_batches(
    function: Callable,
    module: nn.Module,
    variables: Variables,
    inputs: tuple,
    batch_size: int,
    least: int = 1,
    progress: str | None = None,
) -> Any:
    """Computes function(module, *inputs) for arrays of any length, in batches on all local devices.

    Each device gets `batch_size` examples at a time or, if there are fewer, a smaller power of two,
    but no less than `least`; the last batch is padded. Few programs are compiled, and memory is
    bounded. Under jit, all examples are computed at once.

    Args:
        function: a function of a bound module and arrays with a common leading axis.
        module: the unbound module.
        variables: the variables of the module.
        inputs: trees of arrays.
        batch_size: examples for each device at a time.
        least: the smallest batch that is compiled.
        progress: the title of a progress bar; None for no bar.

    Returns:
        A tree of arrays on the host.
    """
    if is_traced(inputs):
        return model.bind(function, module)(variables, *inputs)
    length, devices = len(jax.tree.leaves(inputs)[0]), jax.local_device_count()
    fitting = 1 << max(0, math.ceil(math.log2(max(length / devices, 1))))
    size = min(batch_size, max(fitting, least))
    run = _on_devices(function, module, len(inputs))
    results = []
    starts = range(0, max(length, 1), size * devices)
    for start in tqdm.tqdm(starts, desc=progress, disable=progress is None, mininterval=1.0):
        index = np.minimum(np.arange(start, start + size * devices), max(length - 1, 0))

        def spread(a, index=index):
            batch = a[index] if length else jnp.zeros((len(index), *a.shape[1:]), a.dtype)
            return batch.reshape(devices, size, *a.shape[1:])

        out = run(variables, *jax.tree.map(spread, inputs))
        kept = min(len(index), length - start)
        results.append(
            jax.tree.map(lambda a, n=kept: np.asarray(a).reshape(-1, *a.shape[2:])[:n], out)
        )
    return jax.tree.map(lambda *a: np.concatenate(a), *results)
