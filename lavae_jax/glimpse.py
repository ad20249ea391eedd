"""Networks of a grid VAE that see the image through glimpses.

After strides of 8 pixels, a plain convolutional network has to learn each digit at 64 offsets. Here
a cell of the grid sees the image through a glimpse, a window that is centred on a peak of the
blurred image, and draws a sprite at an offset that the decoder chooses:

    encoder: the peak (no parameters) -> window -> 1x1 layers, which are given its offset
    decoder: 1x1 layers -> a sprite, and its offset in the cell -> canvas

Both are fully convolutional. No latent represents an object or a count. However, if all objects
have the same size, the peaks (as in f_count) of an image that is blurred by the right width do
coincide with objects.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lavae_jax import counting
from lavae_jax.networks import filtered

BACKGROUND = -4.0  # logit of a pixel where nothing is drawn, before training
FOCUS = 10.0  # sharpness of the weights of offsets, before training; see Decoder


class Encoder(nn.Module):
    """Encodes images through glimpses.

    Attributes:
        cell: the side of a cell, in pixels.
        kernel: the side of a window, odd.
        width: the width of the layers.
        outputs: the number of features of a cell.
    """

    cell: int
    kernel: int
    width: int
    outputs: int

    @nn.compact
    def __call__(self, x):
        """Encodes images.

        Args:
            x: images, [B, H, W, C].

        Returns:
            Features, [B, H / cell, W / cell, outputs].
        """
        rows, columns = fixations(x, self.cell, self.kernel)
        offsets = (a @ _offsets(self.cell) for a in (rows, columns))
        where = jnp.stack([*offsets, rows.sum(-1)], axis=-1)  # [B, h, w, 3]
        seen = windows(x, rows, columns, self.kernel)
        features = nn.leaky_relu(nn.Dense(self.width)(seen.reshape(*where.shape[:3], -1)))
        features = jnp.concatenate([features, where], axis=-1)
        features = nn.leaky_relu(nn.Dense(self.width)(features))
        return nn.Dense(self.outputs)(jnp.concatenate([features, where], axis=-1))


class Decoder(nn.Module):
    """Decodes latents into a sprite for each cell.

    The weights of offsets are a discrete Gaussian around the offset that is chosen; its width is
    learned. A cell also chooses the strength of its sprite, since most cells have nothing to draw.

    Attributes:
        cell: the side of a cell, in pixels.
        kernel: the side of a sprite, odd.
        width: the width of the layers.
        channels: C.
    """

    cell: int
    kernel: int
    width: int
    channels: int

    @nn.compact
    def __call__(self, z):
        """Decodes latents.

        Args:
            z: latents, [B, h, w, L].

        Returns:
            Pixel logits, [B, cell h, cell w, C].
        """
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
    """The pixels of a cell in one direction, normalised to mean 0 and variance 1."""
    pixels = np.arange(cell, dtype=np.float32) - (cell - 1) / 2
    return pixels / max(pixels.std(), 1e-6)


# --- where to fixate ---------------------------------------------------------


def fixations(x: jax.Array, cell: int, kernel: int) -> tuple[jax.Array, jax.Array]:
    """Selects the pixel on which each cell centres its glimpse.

    It is the pixel where the image, blurred over the width of a window, is brighter than anywhere
    within half a window. If a window is wider than two cells, a cell has at most one such pixel.

    Args:
        x: images, [B, H, W, C].
        cell: the side of a cell, in pixels.
        kernel: the side of a window, odd.

    Returns:
        One-hot rows and one-hot columns, [B, h, w, cell] each. Both are 0 in a cell without such a
        pixel, whose glimpse is therefore black.
    """
    b, height, width, _ = x.shape
    radius = kernel // 2
    # Squared, so that a large object does not dominate a small one next to it.
    bump = np.square(1 - np.square(np.arange(-radius, radius + 1) / (radius + 1)))
    peaks = counting.peaks(filtered(x.max(-1), bump), 0.0, radius - 1).astype(x.dtype)
    peaks = peaks.reshape(b, height // cell, cell, width // cell, cell)
    return peaks.sum(4).swapaxes(2, 3), peaks.sum(2)


# --- reading and drawing -----------------------------------------------------


def windows(x: jax.Array, rows: jax.Array, columns: jax.Array, kernel: int) -> jax.Array:
    """Reads a window for each cell: the weighted mean of the windows around the cell's pixels.

    Args:
        x: images, [B, H, W, C]; black outside.
        rows: weights of the rows of each cell, [B, h, w, cell].
        columns: weights of the columns of each cell, [B, h, w, cell].
        kernel: k, the side of a window, odd.

    Returns:
        Windows, [B, h, w, k, k, C].
    """
    cell = rows.shape[-1]
    views = _views(x, cell, kernel)
    seen = jnp.einsum("bhwap,bhwaxc->bhwpxc", _shifts(rows, kernel), views)
    return jnp.einsum("bhwaq,bhwpac->bhwpqc", _shifts(columns, kernel), seen)


def draw(sprites: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """Adds up sprites, each around the weighted pixels of its cell: the adjoint of `windows`.

    Args:
        sprites: [B, h, w, k, k, C].
        rows: weights of the rows of each cell, [B, h, w, cell].
        columns: weights of the columns of each cell, [B, h, w, cell].

    Returns:
        Images, [B, H, W, C].
    """
    kernel, cell = sprites.shape[3], rows.shape[-1]
    drawn = jnp.einsum("bhwap,bhwpxc->bhwaxc", _shifts(rows, kernel), sprites)
    drawn = jnp.einsum("bhwaq,bhwpqc->bhwpac", _shifts(columns, kernel), drawn)
    return _add_up(drawn, cell, kernel)


def _shifts(weights: jax.Array, kernel: int) -> jax.Array:
    """Weights [..., cell] of shifts by 0 to cell - 1 -> shift matrices [..., cell + k - 1, k]."""
    cell = weights.shape[-1]
    view = cell + kernel - 1
    moved = np.arange(view)[:, None] - np.arange(kernel)
    by = np.equal(moved, np.arange(cell)[:, None, None]).astype(np.float32)
    return (weights @ by.reshape(cell, -1)).reshape(*weights.shape[:-1], view, kernel)


def _views(x, cell, kernel):
    """The pixels in all possible windows of each cell: [B, h, w, v, v, C], v = cell + k - 1."""
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
