"""Warm-up of the location network by an auxiliary VAE (App. B).

The auxiliary VAE encodes information where the image has content, so its KL map is high there. In
the paper's warm-up, h_loc / γ is fitted to that map while the ELBO is trained. The phased warm-up
trains the auxiliary VAE first, then h_loc alone on the *peaks* of the map:

- The map is averaged over shifts of the image relative to the VAE's grid of latents. The average is
  smooth, and its maxima follow the objects instead of the cells of the grid.
- Each peak is moved to the centre of mass of the pixels around it. The canvas is black, so only the
  object's own pixels count, and the peak is always at the same point of the object.
  The decoder then need not represent each object at several offsets. (The point at which the map
  itself peaks depends on the object's colour, among other things.)
- h_loc / γ is trained as the log-odds, up to a constant, that an object is located at a pixel.
  Peaks are therefore one pixel wide, and each sampled location finds a different object (γ sharpens
  the odds). This training also gives the threshold of f_count a meaning. The ELBO cannot, since it
  is invariant to a constant added to h_loc.
- The location network also sees rotated and mirrored images, so that it detects kinds of objects
  that are not in the training set.
- The threshold corresponds to a small probability. The pixels around a centre share the probability
  of the object, especially for kinds of objects that are not in the training set, so possibly none
  of them exceeds one half. Where there is no object, the probability is far smaller still.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lavae_jax import vae
from lavae_jax.networks import filtered
from lavae_jax.vae import GridVAE


def distance(map_: jax.Array, target: jax.Array) -> jax.Array:
    """Computes the squared distance between maps, summed over pixels and averaged over images.

    Args:
        map_: h_loc / γ, [B, H, W].
        target: the KL map, [B, H, W]; it gets no gradient.

    Returns:
        The distance, a scalar.
    """
    return jnp.square(map_ - jax.lax.stop_gradient(target)).sum((1, 2)).mean()


def augment(x: jax.Array, keys: chex.PRNGKey, share: float) -> jax.Array:
    """Rotates and mirrors some of the images.

    Square images are transformed by one of the 8 symmetries of a square, each equally likely; other
    images by one of the 4 that preserve the shape. The identity is one of them.

    Args:
        x: images, [B, H, W, C].
        keys: random keys, [B].
        share: the probability that such a symmetry is applied to an image.

    Returns:
        Images, [B, H, W, C].
    """
    square = x.shape[1] == x.shape[2]

    def transform(image, key):
        is_augmented, *ways = jax.random.bernoulli(key, jnp.array([share, 0.5, 0.5, 0.5 * square]))
        upside_down, mirrored, transposed = (is_augmented & way for way in ways)
        image = jnp.where(upside_down, image[::-1], image)
        image = jnp.where(mirrored, image[:, ::-1], image)
        return jnp.where(transposed, image.swapaxes(0, 1), image) if square else image

    return jax.vmap(transform)(x, keys)


def kl_map_at(auxiliary: GridVAE, x: jax.Array, shift: jax.Array) -> jax.Array:
    """Computes the KL map of images that are shifted relative to the grid of latents.

    Args:
        auxiliary: bound auxiliary VAE.
        x: images, [B, H, W, C].
        shift: rows down and columns to the right, from 0 to cell - 1, [B, 2].

    Returns:
        The KL map in the coordinates of the unshifted images, [B, H, W].
    """
    height, width = x.shape[1:3]
    cell = auxiliary.cell
    room = cell - 1
    padded = jnp.pad(x, ((0, 0), (room, room), (room, room), (0, 0)))

    def shifted(image, shift):
        size = (height + room, width + room, x.shape[-1])
        return jax.lax.dynamic_slice(image, (room - shift[0], room - shift[1], 0), size)

    def back(map_, shift):
        return jax.lax.dynamic_slice(map_, (shift[0], shift[1]), (height, width))

    moved = jax.vmap(shifted)(padded, shift)
    kl = vae.kl(auxiliary, moved)
    return jax.vmap(back)(vae.kl_map(kl, cell, moved.shape[1:3]), shift)


def mean_kl_map(auxiliary: GridVAE, x: jax.Array, keys: chex.PRNGKey, shifts: int) -> jax.Array:
    """Averages the KL map over shifts² offsets on the grid of latents.

    The offsets of an image are evenly spaced, starting from a random one.

    Args:
        auxiliary: bound auxiliary VAE.
        x: images, [B, H, W, C].
        keys: random keys, [B].
        shifts: the number of offsets in each direction, at most the side of a cell in pixels.

    Returns:
        The mean map, [B, H, W].
    """
    step = auxiliary.cell // shifts
    first = jax.vmap(lambda key: jax.random.randint(key, (2,), 0, step))(keys)
    maps = [
        kl_map_at(auxiliary, x, first + step * jnp.array([row, column]))
        for row in range(shifts)
        for column in range(shifts)
    ]
    total: Any = sum(maps)
    return total / len(maps)


def centre(peaks: jax.Array, x: jax.Array, radius: int, times: int) -> jax.Array:
    """Moves marked pixels to the centres of mass of the windows around them.

    Args:
        peaks: marked pixels, [B, H, W] bool.
        x: images, [B, H, W, C].
        radius: how far a window extends in each direction, in pixels.
        times: how many times each mark is moved; its window moves with it.

    Returns:
        Moved marks, [B, H, W] bool.
    """
    batch, height, width = peaks.shape
    rows, columns = jnp.arange(height)[:, None], jnp.arange(width)
    mass = x.sum(-1)

    def window_sums(a):
        return filtered(a, np.ones(2 * radius + 1))

    total = window_sums(mass)

    def nearest_pixel(coordinate):
        # Halves are always rounded up: with rint, rounding would depend on the location.
        mean = window_sums(mass * coordinate) / jnp.maximum(total, 1e-6)
        return jnp.where(total > 0, jnp.floor(mean + 0.5), coordinate).astype(int)

    towards = (nearest_pixel(rows) * width + nearest_pixel(columns)).reshape(batch, -1)

    def follow(towards, marked):
        place = jnp.arange(height * width)
        for _ in range(times):
            place = towards[place]
        return jnp.zeros_like(marked).at[place].max(marked)

    return jax.vmap(follow)(towards, peaks.reshape(batch, -1)).reshape(peaks.shape)


def detection_loss(
    logits: jax.Array,
    peaks: jax.Array,
    positive_weight: float,
    localisation_weight: float,
    ignored: jax.Array | None = None,
) -> jax.Array:
    """Computes the cross-entropy of marked pixels, summed over pixels and averaged over images.

    A second term is the cross-entropy of identifying a marked pixel among the 3x3 pixels around it,
    so that an object is always located at the same one of its pixels.

    Args:
        logits: log-odds of an object at each pixel, [B, H, W].
        peaks: marked pixels, [B, H, W] bool.
        positive_weight: the weight of marked pixels in the first term. It is large, since all
            pixels that share the probability of being marked should exceed the threshold; only the
            highest of them is counted.
        localisation_weight: the weight of the second term.
        ignored: pixels that the first term omits, [B, H, W] bool; None for no such pixels.

    Returns:
        The loss, a scalar.
    """
    entropy = optax.sigmoid_binary_cross_entropy(logits, peaks)
    entropy = jnp.where(peaks, positive_weight, 1.0) * entropy
    if ignored is not None:
        entropy = jnp.where(ignored, 0.0, entropy)
    which = jax.nn.logsumexp(_neighbours(logits), axis=0) - logits
    return (entropy + jnp.where(peaks, localisation_weight * which, 0.0)).sum((1, 2)).mean()


def _neighbours(maps):
    """The 3x3 pixels around each pixel of [B, H, W]: [9, B, H, W]; -inf outside."""
    height, width = maps.shape[1:]
    padded = jnp.pad(maps, ((0, 0), (1, 1), (1, 1)), constant_values=-jnp.inf)
    starts = [(row, column) for row in range(3) for column in range(3)]
    return jnp.stack([padded[:, r : r + height, c : c + width] for r, c in starts])
