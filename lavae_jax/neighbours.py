"""Objects of similar appearance, compared by the pixels around them.

The components of a mixture are initialised at different training objects (see
`prior.at_encodings`), so that no object gets two components while another gets none. The components
near an object are those that were initialised at similar objects. These are determined before
training and do not change with it, so a training step can leave out all others (see
`prior.log_density`).
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.ndimage
from jax import lax

NEAR = 8  # components that a training step evaluates for an object; all if there are fewer
SKETCH_SIZE = 32  # numbers per sketch
# Makes a sketch insensitive to a location that is off by one pixel.
BLUR = np.outer([1, 2, 1], [1, 2, 1])
BATCH_SIZE = 1024  # objects that are compared at once


def sketch(windows: jax.Array) -> jax.Array:
    """Projects blurred windows at random, which preserves distances (Johnson-Lindenstrauss).

    Sketches of binary windows are whole numbers, so they are exact on every platform.

    Args:
        windows: around objects, [P, h, w, C].

    Returns:
        Sketches, [P, SKETCH_SIZE].
    """
    signs = np.random.default_rng(0).choice([-1, 1], (*windows.shape[1:], SKETCH_SIZE))
    blurred = scipy.ndimage.convolve(signs, BLUR[..., None, None], mode="constant")
    weights = blurred.reshape(-1, SKETCH_SIZE).astype(np.float32)
    return jnp.matmul(windows.reshape(len(windows), -1), weights, precision=lax.Precision.HIGHEST)


def different(sketches: np.ndarray, number: int) -> np.ndarray:
    """Selects sketches, distinct ones first.

    Args:
        sketches: [P, SKETCH_SIZE].
        number: how many are selected.

    Returns:
        Indices, [number] (or [P] if P is less): the first occurrence of each distinct sketch and,
        if these are too few, duplicates; both in their original order.
    """
    _, first = np.unique(sketches, axis=0, return_index=True)
    first = np.sort(first)
    others = np.setdiff1d(np.arange(len(sketches)), first)
    return np.concatenate([first, others])[:number]


def nearest(sketches: np.ndarray, references: np.ndarray, number: int) -> np.ndarray:
    """Finds the nearest references of each sketch.

    Args:
        sketches: [P, SKETCH_SIZE].
        references: [K, SKETCH_SIZE].
        number: how many references are found, at most K.

    Returns:
        Indices of references, nearest first, [P, number].
    """
    pieces = [np.zeros((0, number), np.int32)]
    for start in range(0, len(sketches), BATCH_SIZE):
        piece = sketches[start : start + BATCH_SIZE]
        filled = np.pad(piece, ((0, BATCH_SIZE - len(piece)), (0, 0)))
        pieces.append(np.asarray(_nearest(filled, references, number))[: len(piece)])
    return np.concatenate(pieces)


@jax.jit(static_argnums=2)
def _nearest(sketches, references, number):
    # |s - r|² = |s|² - 2 (s r - |r|² / 2)
    products = jnp.matmul(sketches, references.T, precision=lax.Precision.HIGHEST)
    return lax.top_k(products - jnp.square(references).sum(1) / 2, number)[1]
