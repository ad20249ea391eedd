"""The number of objects: f_count, and the scale of the location logits (App. B)."""

import math

import jax
import jax.numpy as jnp
from jax import lax

PAPER_PIXELS = 64 * 64


def scale_with_canvas(gamma: float, num_pixels: int) -> float:
    """Computes γ for a canvas: proportional to log D, and `gamma` for the paper's 64x64.

    Args:
        gamma: γ on a 64x64 canvas.
        num_pixels: D.

    Returns:
        γ.
    """
    return gamma * math.log(num_pixels) / math.log(PAPER_PIXELS)


def peaks(h_loc: jax.Array, threshold: float, radius: int) -> jax.Array:
    """Finds local maxima above a threshold.

    A local maximum is the largest of the (2 radius + 1)² pixels around it; of several equal ones,
    the first in reading order. Pixels outside the map are ignored.

    Args:
        h_loc: maps, [..., H, W].
        threshold: peaks are above it, in units of `h_loc`.
        radius: in pixels.

    Returns:
        [..., H, W] bool.
    """
    h_loc = lax.stop_gradient(h_loc)
    height, width = h_loc.shape[-2:]
    order = jnp.arange(height * width, dtype=jnp.int32).reshape(height, width)
    highest = h_loc == _pool(h_loc, radius, lax.max, -jnp.inf)
    nobody = height * width
    first = _pool(jnp.where(highest, order, nobody), radius, lax.min, nobody)
    return highest & (first == order) & (h_loc > threshold)


def count(peaks: jax.Array, max_objects: int) -> jax.Array:
    """Computes f_count, the number of peaks.

    Args:
        peaks: [..., H, W] bool.
        max_objects: M.

    Returns:
        The number of peaks, at most M, [...] int32.
    """
    return jnp.minimum(peaks.sum((-2, -1), dtype=jnp.int32), max_objects)


def _pool(x, radius, function, initial):
    """Pools over rows, then over columns."""
    initial = jnp.asarray(initial, x.dtype)
    for axis in (x.ndim - 2, x.ndim - 1):
        window, padding = [1] * x.ndim, [(0, 0)] * x.ndim
        window[axis], padding[axis] = 2 * radius + 1, (radius, radius)
        x = lax.reduce_window(x, initial, function, window, [1] * x.ndim, padding)
    return x
