"""How the location network learns where objects are before the ELBO can tell it.

The auxiliary VAE spends its latents where there is something to see: the map of its
KL is high there. The paper's warm-up has h_loc / γ follow that map while the ELBO is
trained beside it. The phased warm-up trains the auxiliary VAE first, then h_loc alone on
the map's *peaks*:

- The map is the mean over shifts of the image under the VAE's grid of latents. That
  makes it smooth, and puts its maxima on the objects instead of on cells of the grid.
- A peak then moves to the centre of mass of the pixels around it. In this generative
  model an object's pixels are all that there is on a black canvas, so that is the same
  point of the object at every sighting, and the decoder need not know an object in nine
  places. (Which point of an object the map peaks at depends on its colour, for one.)
- h_loc / γ is taken for the log odds of "an object's location is this pixel", but for a
  constant, and trained as such. So peaks are one pixel wide, each location that is sampled
  finds an object of its own (γ sharpens the odds), and the threshold above which f_count
  counts has a meaning that the ELBO, blind to a constant added to h_loc, cannot give it.
- It learns from images that are turned and mirrored, too, so as to know objects of kinds that
  are not in the training set.
- The threshold stands for a small probability. The pixels around a centre share its
  probability, all the more where an object is of a kind that was never seen, so none of them
  need pass one half; and where there is no object, the probability is far smaller still.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lavae_jax import vae
from lavae_jax.networks import filtered
from lavae_jax.vae import GridVAE


def distance(map_: jax.Array, target: jax.Array) -> jax.Array:
    """Σ over pixels of (map - target)², the mean over images [B, H, W]."""
    return jnp.square(map_ - jax.lax.stop_gradient(target)).sum((1, 2)).mean()


def augment(x: jax.Array, keys: chex.PRNGKey, share: float) -> jax.Array:
    """Rotates and mirrors a share of the images [B, H, W, C].

    Each of the 8 symmetries of a square has the same probability; of oblong images, each of the 4
    that keep the shape.
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
    """The map [B, H, W] of the VAE's KL when each image is shifted on the grid of latents.

    shift: [B, 2], from 0 to cell - 1 pixels down and to the right.
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
    """The mean of the maps at shifts² places on the grid, evenly spaced from a random one on."""
    step = auxiliary.cell // shifts
    first = jax.vmap(lambda key: jax.random.randint(key, (2,), 0, step))(keys)
    maps = [
        kl_map_at(auxiliary, x, first + step * jnp.array([row, column]))
        for row in range(shifts)
        for column in range(shifts)
    ]
    return sum(maps) / len(maps)


def centre(peaks: jax.Array, x: jax.Array, radius: int, times: int) -> jax.Array:
    """Marked pixels [B, H, W], each moved to the centre of mass of the window around it.

    The window reaches `radius` pixels in each direction; it moves along, `times` times.
    """
    batch, height, width = peaks.shape
    rows, columns = jnp.arange(height)[:, None], jnp.arange(width)
    mass = x.sum(-1)

    def window_sums(a):
        return filtered(a, np.ones(2 * radius + 1))

    total = window_sums(mass)

    def nearest_pixel(coordinate):
        # Halves always go the same way: with rint, it would depend on where the object is.
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
    logits: jax.Array, peaks: jax.Array, positive_weight: float, localisation_weight: float
) -> jax.Array:
    """Cross-entropy of marked pixels [B, H, W], summed over pixels, the mean over images.

    A marked pixel has `positive_weight`: where several pixels share the chance of being marked,
    all of them should pass the threshold, since the highest alone is counted. A second term, with
    `localisation_weight`, is the cross-entropy of which of the 3x3 pixels around a mark is marked:
    an object's location should always be the same pixel of it.
    """
    entropy = optax.sigmoid_binary_cross_entropy(logits, peaks)
    entropy = jnp.where(peaks, positive_weight, 1.0) * entropy
    which = jax.nn.logsumexp(_neighbours(logits), axis=0) - logits
    return (entropy + jnp.where(peaks, localisation_weight * which, 0.0)).sum((1, 2)).mean()


def _neighbours(maps):
    """Each pixel's 3x3 of [B, H, W]: [9, B, H, W]; outside there is nothing."""
    height, width = maps.shape[1:]
    padded = jnp.pad(maps, ((0, 0), (1, 1), (1, 1)), constant_values=-jnp.inf)
    starts = [(row, column) for row in range(3) for column in range(3)]
    return jnp.stack([padded[:, r : r + height, c : c + width] for r, c in starts])
