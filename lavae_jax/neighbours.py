"""Objects that look alike, by the pixels around them.

A mixture's components start at training objects (`prior.at_encodings`): at different ones, so that
none is there twice while another is missing. An object is near to those components that started at
what looks like it. That is known before training and does not change with it, so a training step
can leave the others out (`prior.log_density`).
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.signal
from jax import lax

NEAR = 8  # components that a training step evaluates for an object, or all if they are fewer
SKETCH_SIZE = 32  # numbers
# So that the sketch of an object that is found a pixel off its location changes little.
BLUR = np.outer([1, 2, 1], [1, 2, 1])
BATCH_SIZE = 1024  # objects


def sketch(windows: jax.Array) -> jax.Array:
    """Random projections of blurred windows, which keep their distances (Johnson, Lindenstrauss).

    Windows [P, h, w, C] -> [P, SKETCH_SIZE]. Those of binary windows are whole numbers, so they are
    exact on every platform.
    """
    signs = np.random.default_rng(0).choice([-1, 1], (*windows.shape[1:], SKETCH_SIZE))
    blurred = scipy.signal.convolve(signs, BLUR[..., None, None], "same", "direct")
    weights = blurred.reshape(-1, SKETCH_SIZE).astype(np.float32)
    return jnp.matmul(windows.reshape(len(windows), -1), weights, precision=lax.Precision.HIGHEST)


def different(sketches: np.ndarray, number: int) -> np.ndarray:
    """Indices of so many of the sketches [P, SKETCH_SIZE].

    The first that are all different, and if these are not enough, the first of the others.
    """
    _, first = np.unique(sketches, axis=0, return_index=True)
    first = np.sort(first)
    others = np.setdiff1d(np.arange(len(sketches)), first)
    return np.concatenate([first, others])[:number]


def nearest(sketches: np.ndarray, references: np.ndarray, number: int) -> np.ndarray:
    """Indices of the nearest references [K, SKETCH_SIZE] of each sketch [P, SKETCH_SIZE]."""
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
