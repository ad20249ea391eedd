"""Sprites onto the canvas, and windows out of it: the model's two convolutions.

Letters: B images of H x W pixels and C channels; P objects, each of which belongs
to image `image[p]`. A location is either hard, `index` [P] (flat pixel, row by row),
or relaxed, `weights` [P, H, W] (a distribution over pixels). The pixel (size // 2,
size // 2) of a sprite or window lies on the object's location; whatever falls
outside the canvas is cut off, and the canvas is black beyond its border.

`place` is the paper's  λ = Σ_i f_sprite(z_app^(i)) * z_loc^(i), a convolution;
`windows` is its adjoint, a cross-correlation. Both have two forms that agree to
float accuracy: `lax.conv_general_dilated` is the definition, and what accelerators
are good at; on a CPU a product of Fourier transforms is some 70 times faster.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import scipy.fft
from jax import lax

Method = Literal["convolution", "fft"]


def default_method() -> Method:
    return "fft" if jax.default_backend() == "cpu" else "convolution"


# --- relaxed locations -------------------------------------------------------


def place(
    sprites: jax.Array,
    weights: jax.Array,
    image: jax.Array,
    num_images: int,
    method: Method | None = None,
) -> jax.Array:
    """Sum of sprites [P, h, w, C], each convolved with its location: [B, H, W, C]."""
    if (method or default_method()) == "fft":
        return _place_fft(sprites, weights, image, num_images)
    placed = jax.vmap(_convolve)(sprites, weights)
    return jax.ops.segment_sum(placed, image, num_images)


def windows(
    images: jax.Array,
    weights: jax.Array,
    image: jax.Array,
    size: int,
    method: Method | None = None,
) -> jax.Array:
    """The mean window [P, size, size, C] around each object under its location."""
    if (method or default_method()) == "fft":
        return _windows_fft(images, weights, image, size)
    return jax.vmap(functools.partial(_correlate, size=size))(images[image], weights)


def _convolve(sprite: jax.Array, delta: jax.Array) -> jax.Array:
    """[h, w, C] * [H, W] -> [H, W, C]."""
    kernel = sprite[::-1, ::-1, None, :]  # XLA's convolution does not flip its kernel
    padding = [(size - 1 - size // 2, size // 2) for size in sprite.shape[:2]]
    return lax.conv_general_dilated(
        delta[None, ..., None], kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]


def _correlate(image: jax.Array, delta: jax.Array, size: int) -> jax.Array:
    """[H, W, C] with [H, W] as the kernel -> [size, size, C]."""
    padding = [(size // 2, size - 1 - size // 2)] * 2
    return lax.conv_general_dilated(
        image[None],
        delta[..., None, None],
        (1, 1),
        padding,
        dimension_numbers=("CHWN", "HWIO", "CHWN"),
    )[0]


def _fft_shape(height: int, width: int, overhang: int) -> tuple[int, int]:
    """A transform that fits the canvas and what hangs over its border, of small factors."""
    return tuple(scipy.fft.next_fast_len(side + overhang - 1) for side in (height, width))


def _place_fft(sprites, weights, image, num_images):
    _, height, width = weights.shape
    _, h, w, _ = sprites.shape
    shape = _fft_shape(height, width, max(h, w))
    delta = jnp.fft.rfft2(weights, shape)[:, None]
    sprite = jnp.fft.rfft2(jnp.moveaxis(sprites, -1, 1), shape)
    total = jax.ops.segment_sum(sprite * delta, image, num_images)
    canvas = jnp.fft.irfft2(total, shape)[..., h // 2 : h // 2 + height, w // 2 : w // 2 + width]
    return jnp.moveaxis(canvas, 1, -1)


def _windows_fft(images, weights, image, size):
    _, height, width = weights.shape
    shape = _fft_shape(height, width, size)
    delta = jnp.fft.rfft2(weights, shape)[:, None]
    x = jnp.fft.rfft2(jnp.moveaxis(images, -1, 1), shape)[image]
    shifted = jnp.roll(jnp.fft.irfft2(x * delta.conj(), shape), size // 2, axis=(-2, -1))
    return jnp.moveaxis(shifted[..., :size, :size], 1, -1)


# --- hard locations ----------------------------------------------------------


def place_at(
    sprites: jax.Array, index: jax.Array, image: jax.Array, num_images: int, canvas: tuple[int, int]
) -> jax.Array:
    """`place` for hard locations; the cost is that of the sprites' pixels."""
    height, width = canvas
    _, h, w, channels = sprites.shape
    padded = jnp.zeros((num_images, height + h - 1, width + w - 1, channels), sprites.dtype)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2, 3),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0, 1, 2),
    )
    padded = lax.scatter_add(padded, _corners(index, image, width), sprites, numbers)
    return padded[:, h // 2 : h // 2 + height, w // 2 : w // 2 + width]


def windows_at(images: jax.Array, index: jax.Array, image: jax.Array, size: int) -> jax.Array:
    """`windows` for hard locations; the cost is that of the windows' pixels."""
    _, _, width, channels = images.shape
    margin = (size // 2, size - 1 - size // 2)
    padded = jnp.pad(images, ((0, 0), margin, margin, (0, 0)))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(1, 2, 3), collapsed_slice_dims=(0,), start_index_map=(0, 1, 2)
    )
    corners = _corners(index, image, width)
    return lax.gather(padded, corners, numbers, (1, size, size, channels))


def _corners(index: jax.Array, image: jax.Array, width: int) -> jax.Array:
    """[P, 3]: image, row and column of a box's corner on the padded canvas."""
    return jnp.stack([image, index // width, index % width], axis=-1)
