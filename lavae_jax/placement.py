"""Sprites placed on the canvas, and windows read from it: the model's two convolutions.

Letters: B images of H x W pixels and C channels; P objects, each of which belongs to image
`image[p]`. A location is either hard, `index` [P] (a flat pixel index, row by row), or relaxed,
`weights` [P, H, W] (a distribution over pixels). Pixel (size // 2, size // 2) of a sprite or window
lies on the object's location. What falls outside the canvas is cut off, and the canvas is black
beyond its border.

`place` is the paper's  λ = Σ_i f_sprite(z_app^(i)) * z_loc^(i), a convolution; `windows` is its
adjoint, a cross-correlation. Each has two implementations, which agree to float accuracy. On
accelerators, `place` uses `lax.conv_general_dilated` and `windows` uses matrix products: as a
convolution, it would have the 64x64 location map as its kernel, and the TPU compiler does not
finish compiling its gradient. On a CPU, both use Fourier transforms, which are about 70 times
faster than convolutions. The choice depends on the platform for which a program is compiled, not on
the one that traces it.
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
from jax import lax

from lavae_jax.arrays import Array

# --- relaxed locations -------------------------------------------------------


def place(
    sprites: jax.Array,
    weights: jax.Array,
    image: jax.Array,
    num_images: int,
    method: Literal["convolution", "fft"] | None = None,
) -> jax.Array:
    """Convolves sprites with their locations, and adds up those of each image.

    Args:
        sprites: [P, h, w, C].
        weights: relaxed locations, [P, H, W].
        image: the image of each object, [P].
        num_images: B.
        method: the implementation; None for the one that suits the platform.

    Returns:
        λ, [B, H, W, C].
    """
    both: dict[str, Callable] = {"fft": _place_fft, "convolution": _place_convolution}
    forms = {name: functools.partial(f, num_images=num_images) for name, f in both.items()}
    if method:
        return forms[method](sprites, weights, image)
    return lax.platform_dependent(
        sprites, weights, image, cpu=forms["fft"], default=forms["convolution"]
    )


def windows(
    images: jax.Array,
    weights: jax.Array,
    image: jax.Array,
    size: int,
    method: Literal["fft", "matmul"] | None = None,
) -> jax.Array:
    """Reads the window around each object, averaged over its relaxed location.

    Args:
        images: [B, H, W, C].
        weights: relaxed locations, [P, H, W].
        image: the image of each object, [P].
        size: height and width of a window.
        method: the implementation; None for the one that suits the platform.

    Returns:
        Windows, [P, size, size, C].
    """
    both: dict[str, Callable] = {"fft": _windows_fft, "matmul": _windows_matmul}
    forms = {name: functools.partial(f, size=size) for name, f in both.items()}
    if method:
        return forms[method](images, weights, image)
    return lax.platform_dependent(images, weights, image, cpu=forms["fft"], default=forms["matmul"])


def _place_convolution(sprites, weights, image, num_images):
    placed = jax.vmap(_convolve)(sprites, weights)
    return jax.ops.segment_sum(placed, image, num_images)


def _convolve(sprite: jax.Array, delta: jax.Array) -> jax.Array:
    """[h, w, C] * [H, W] -> [H, W, C]."""
    kernel = sprite[::-1, ::-1, None, :]  # XLA's convolution does not flip its kernel
    padding = [(size - 1 - size // 2, size // 2) for size in sprite.shape[:2]]
    return lax.conv_general_dilated(
        delta[None, ..., None],
        kernel,
        (1, 1),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=lax.Precision.HIGHEST,  # bfloat16 rounds 0.999 to 1, where log(1 - λ) diverges
    )[0]


def _fft_shape(height: int, width: int, overhang: int) -> tuple[int, int]:
    """The shape, with small prime factors, of a transform that holds canvas and overhang."""
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


def _windows_matmul(images, weights, image, size):
    """A matrix product for each row i of the window, then sums along diagonals.

    window[i, j] = Σ_s (Σ_r weights[r, s] x[r + i, s + j]), the inner sum for all columns of x.
    """
    height = weights.shape[1]
    margin = (size // 2, size - 1 - size // 2)
    x = jnp.pad(images, ((0, 0), margin, margin, (0, 0)))[image]
    rows = jnp.stack([x[:, i : i + height] for i in range(size)], axis=1)
    product = jnp.einsum("prs,pirtc->pcist", weights, rows)
    return jnp.moveaxis(_from_diagonal(product, size).sum(-2), 1, -1)


def _from_diagonal(a: jax.Array, width: int) -> jax.Array:
    """[..., S, T] -> [..., S, width]: the elements of row s from element s on."""
    *lead, rows, columns = a.shape
    flat = a.reshape(*lead, rows * columns)
    flat = jnp.pad(flat, [(0, 0)] * len(lead) + [(0, rows)])  # rows longer by one, hence shifted
    return flat.reshape(*lead, rows, columns + 1)[..., :width]


# --- hard locations ----------------------------------------------------------


def place_at(
    sprites: jax.Array, index: jax.Array, image: jax.Array, num_images: int, canvas: tuple[int, int]
) -> jax.Array:
    """Does the same as `place` for hard locations, in time proportional to the sprites' pixels.

    Args:
        sprites: [P, h, w, C].
        index: flat pixel indices, [P].
        image: the image of each object, [P].
        num_images: B.
        canvas: height and width, H and W.

    Returns:
        λ, [B, H, W, C].
    """
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


def windows_at(images: jax.Array, index: jax.Array, image: Array, size: int) -> jax.Array:
    """Does the same as `windows` for hard locations, in time proportional to the windows' pixels.

    Args:
        images: [B, H, W, C].
        index: flat pixel indices, [P].
        image: the image of each object, [P].
        size: height and width of a window.

    Returns:
        Windows, [P, size, size, C].
    """
    _, _, width, channels = images.shape
    margin = (size // 2, size - 1 - size // 2)
    padded = jnp.pad(images, ((0, 0), margin, margin, (0, 0)))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(1, 2, 3), collapsed_slice_dims=(0,), start_index_map=(0, 1, 2)
    )
    corners = _corners(index, image, width)
    return lax.gather(padded, corners, numbers, (1, size, size, channels))


def _corners(index: jax.Array, image: Array, width: int) -> jax.Array:
    """[P, 3]: image, row and column of a box's corner on the padded canvas."""
    return jnp.stack([image, index // width, index % width], axis=-1)


# --- on the host -------------------------------------------------------------


def overlap(
    location: np.ndarray, size: tuple[int, int], canvas: tuple[int, int]
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Finds the part of the canvas that a sprite covers, and the corresponding part of the sprite.

    Args:
        location: row and column, [2]; outside the canvas, its nearest pixel is used instead.
        size: height and width of the sprite.
        canvas: height and width, H and W.

    Returns:
        Slices of rows and columns of the canvas, and slices of rows and columns of the sprite.
    """
    (rows, sprite_rows), (columns, sprite_columns) = map(_overlap, location, size, canvas)
    return (rows, columns), (sprite_rows, sprite_columns)


def _overlap(at: int, length: int, side: int) -> tuple[slice, slice]:
    """Does the same along one axis."""
    first = min(max(int(at), 0), side - 1) - length // 2
    start, stop = max(first, 0), min(first + length, side)
    return slice(start, stop), slice(start - first, stop - first)


def compose(
    sprites: np.ndarray,
    location: np.ndarray,
    canvas: tuple[int, int],
    composition: Literal["sum", "over"] = "sum",
) -> np.ndarray:
    """Composes the sprites of one scene into λ, in NumPy; see `generative.intensity`.

    Args:
        sprites: [n, h, w, C].
        location: row and column of each sprite, [n, 2].
        canvas: height and width, H and W.
        composition: "sum" or "over".

    Returns:
        λ, [H, W, C].
    """
    total = np.zeros((*canvas, sprites.shape[-1]), np.float32)
    for sprite, at in zip(sprites, location, strict=True):
        on_canvas, on_sprite = overlap(at, sprite.shape[:2], canvas)
        front = sprite[on_sprite]
        if composition == "over":
            total[on_canvas] *= 1 - front.max(-1, keepdims=True)
        total[on_canvas] += front
    return total
