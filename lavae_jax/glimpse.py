"""Networks of a grid VAE that see the image through glimpses.

Behind strides of 8 pixels, a plain convolutional network has to learn each digit at 64 offsets.
Here a cell of the grid sees the image through a glimpse, a window that is centred on a peak of the
blurred image, and draws a sprite at an offset that the decoder chooses:

    encoder: the peak (no parameters) -> window -> 1x1 layers, which are given its offset
    decoder: 1x1 layers -> a sprite, and its offset in the cell -> canvas

Both are fully convolutional. No latent stands for an object or a count; but peaks, as f_count
finds them, of a blur of the right width do find objects of one size.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lavae_jax import counting
from lavae_jax.networks import filtered

BACKGROUND = -4.0  # logit of a pixel where nothing is drawn, before training
FOCUS = 10.0  # of what is drawn, before training; see Decoder


class Encoder(nn.Module):
    """Images [B, H, W, C] -> features [B, H / cell, W / cell, outputs]."""

    cell: int
    kernel: int  # the side of a window, odd
    width: int
    outputs: int

    @nn.compact
    def __call__(self, x):
        rows, columns = fixations(x, self.cell, self.kernel)
        where = [*(a @ _offsets(self.cell) for a in (rows, columns)), rows.sum(-1)]
        where = jnp.stack(where, axis=-1)  # [B, h, w, 3]
        seen = windows(x, rows, columns, self.kernel)
        features = nn.leaky_relu(nn.Dense(self.width)(seen.reshape(*where.shape[:3], -1)))
        features = jnp.concatenate([features, where], axis=-1)
        features = nn.leaky_relu(nn.Dense(self.width)(features))
        return nn.Dense(self.outputs)(jnp.concatenate([features, where], axis=-1))


class Decoder(nn.Module):
    """Latents [B, h, w, L] -> pixel logits [B, cell h, cell w, channels].

    Weights of offsets are a discrete Gaussian around the one that is chosen, whose width is learnt.
    A cell also chooses the strength of its sprite: most have nothing to draw.
    """

    cell: int
    kernel: int  # the side of a sprite, odd
    width: int
    channels: int

    @nn.compact
    def __call__(self, z):
        features = z
        for _ in range(2):
            features = nn.leaky_relu(nn.Dense(self.width)(features))
        where = nn.Dense(3)(jnp.concatenate([features, z], axis=-1))
        offset, strength = where[..., :2, None], 1 + where[..., 2:]
        focus = self.param("focus", nn.initializers.constant(np.log(FOCUS)), ())
        distance = jnp.square(offset - _offsets(self.cell))
        rows, columns = jnp.moveaxis(jax.nn.softmax(-jnp.exp(focus) * distance), -2, 0)
        shape = (self.kernel, self.kernel, self.channels)
        sprites = nn.Dense(int(np.prod(shape)))(features).reshape(*z.shape[:3], *shape)
        initial = nn.initializers.constant(BACKGROUND)
        background = self.param("dark", initial, (self.channels,))
        return draw(sprites, strength * rows, columns) + background


def _offsets(cell: int) -> np.ndarray:
    """The pixels of a cell in one direction: as numbers of mean 0 and variance 1."""
    pixels = np.arange(cell, dtype=np.float32) - (cell - 1) / 2
    return pixels / max(pixels.std(), 1e-6)


# --- where to look -----------------------------------------------------------


def fixations(x: jax.Array, cell: int, kernel: int) -> tuple[jax.Array, jax.Array]:
    """One-hot rows and columns of the pixel that each cell fixates, [B, h, w, cell] each.

    That is the pixel where the image, blurred as far as a window reaches, is brighter than
    anywhere within half a window. In a cell without such a pixel both are 0, so that its
    glimpse is black. With more than two cells to a window, none has two such pixels.
    """
    b, height, width, _ = x.shape
    radius = kernel // 2
    # Squared, so that a large object does not outshine a small one next to it.
    bump = np.square(1 - np.square(np.arange(-radius, radius + 1) / (radius + 1)))
    peaks = counting.peaks(filtered(x.max(-1), bump), 0.0, radius - 1).astype(x.dtype)
    peaks = peaks.reshape(b, height // cell, cell, width // cell, cell)
    return peaks.sum(4).swapaxes(2, 3), peaks.sum(2)


# --- to look and to draw there -----------------------------------------------


def windows(x: jax.Array, rows: jax.Array, columns: jax.Array, kernel: int) -> jax.Array:
    """What is seen of images [B, H, W, C] around the pixels of each cell, a weighted mean over
    them: [B, h, w, k, k, C]. Beyond the image it is black."""
    cell = rows.shape[-1]
    views = _views(x, cell, kernel)
    seen = jnp.einsum("bhwap,bhwaxc->bhwpxc", _shifts(rows, kernel), views)
    return jnp.einsum("bhwaq,bhwpac->bhwpqc", _shifts(columns, kernel), seen)


def draw(sprites: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """The sum of sprites [B, h, w, k, k, C], each around the pixels of its cell, by their
    weights: [B, H, W, C]. The adjoint of `windows`."""
    kernel, cell = sprites.shape[3], rows.shape[-1]
    drawn = jnp.einsum("bhwap,bhwpxc->bhwaxc", _shifts(rows, kernel), sprites)
    drawn = jnp.einsum("bhwaq,bhwpqc->bhwpac", _shifts(columns, kernel), drawn)
    return _add_up(drawn, cell, kernel)


def _shifts(weights: jax.Array, kernel: int) -> jax.Array:
    """[..., cell] -> matrices [..., cell + k - 1, k] that move k numbers by 0 to cell - 1."""
    cell = weights.shape[-1]
    view = cell + kernel - 1
    moved = np.arange(view)[:, None] - np.arange(kernel)
    by = np.equal(moved, np.arange(cell)[:, None, None]).astype(np.float32)
    return (weights @ by.reshape(cell, -1)).reshape(*weights.shape[:-1], view, kernel)


def _views(x, cell, kernel):
    """All that a cell's windows can see: [B, h, w, v, v, C], v = cell + k - 1."""
    b, height, width, channels = x.shape
    h, w, view, margin = height // cell, width // cell, cell + kernel - 1, kernel // 2
    spanned = -(-view // cell)  # cells
    beyond = (spanned - 1) * cell - margin
    x = jnp.pad(x, ((0, 0), (margin, beyond), (margin, beyond), (0, 0)))
    x = x.reshape(b, h + spanned - 1, cell, w + spanned - 1, cell, channels)
    x = jnp.concatenate([x[:, i : i + h] for i in range(spanned)], axis=2)
    x = jnp.concatenate([x[:, :, :, i : i + w] for i in range(spanned)], axis=4)
    return x[:, :, :view, :, :view].swapaxes(2, 3)


def _add_up(views, cell, kernel):
    """The adjoint of `_views`."""
    b, h, w, _, _, channels = views.shape
    canvas = jax.ShapeDtypeStruct((b, h * cell, w * cell, channels), views.dtype)
    (canvas,) = jax.linear_transpose(lambda x: _views(x, cell, kernel), canvas)(views)
    return canvas
