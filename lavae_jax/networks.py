"""The networks of Appendix B. They compute features and know no probability.

Every convolution is followed by leaky ReLU and batch normalisation unless it says
otherwise. Each network is given its `Execution`: whether it is being trained, over which
devices, and how its layers are computed. Where a mask is given, batch statistics are taken over
the examples that it marks.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype

from lavae_jax.settings import AppearanceSettings, DecoderSettings, LocationSettings

BATCH_NORM_MOMENTUM = 0.9
BATCH_NORM_EPSILON = 1e-5


# --- parts -------------------------------------------------------------------


class Execution(NamedTuple):
    """How the layers of a network are computed.

    train: whether it is being trained: batch normalisation uses the statistics of the batch.
    axis_name: of the devices over which these are taken.
    dtype: of the activations between layers, and of the operands of convolutions; None for that
        of the images and parameters.
    packed: how many neighbouring pixels of a row share one channel vector, 1 or 2. A TPU pads
        channels to 128 lanes, so 48 channels waste two thirds of its memory bandwidth, and two
        pixels of 48 channels a quarter. The function that a network computes, and its parameters,
        are the same.
    """

    train: bool = False
    axis_name: str | None = None
    dtype: str | None = None
    packed: int = 1

    @classmethod
    def of(cls, train: bool, axis_name: str | None, activations: str, packed: int) -> "Execution":
        """As settings name it."""
        return cls(train, axis_name, None if activations == "float32" else activations, packed)

    def cast(self, *arrays: jax.Array) -> list[jax.Array]:
        """To the common type that they are computed in."""
        return promote_dtype(*arrays, dtype=self.dtype)

    def plain(self) -> "Execution":
        """The same without packing."""
        return self._replace(packed=1)

    def exact(self) -> "Execution":
        """The same in the type of the parameters."""
        return self._replace(dtype=None)

    def fitting(self, x: jax.Array, stride: int = 1, lost: int = 0) -> "Execution":
        """The same for a layer on images [N, H, W, C], without packing if it cannot be packed.

        `lost` is the number of columns by which the layer's output is narrower.
        """
        can_pack = stride == 1 and x.shape[2] % self.packed == lost % self.packed == 0
        return self if can_pack else self.plain()

    def pack(self, x: jax.Array) -> jax.Array:
        """[N, H, W, C] -> [N, H, W / packed, packed C]."""
        n, height, width, channels = x.shape
        return x.reshape(n, height, width // self.packed, self.packed * channels)

    def unpack(self, x: jax.Array) -> jax.Array:
        """The inverse of `pack`."""
        n, height, width, channels = x.shape
        return x.reshape(n, height, width * self.packed, channels // self.packed)


class BatchNorm(nn.Module):
    """Batch normalisation over the examples that a mask [N] marks, on all devices.

    flax's own averages the devices' means, which is wrong where devices hold different
    numbers of objects. With no example anywhere, the running statistics serve and stay.
    Activations are packed as `execution` says; statistics are float32.
    """

    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x, mask=None):
        packed = self.execution.packed
        shape, ones = (x.shape[-1] // packed,), nn.initializers.ones
        scale = self.param("scale", ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        variance = self.variable("batch_stats", "var", jnp.ones, shape)
        dtype, x = x.dtype, x.astype(jnp.promote_types(x.dtype, jnp.float32))
        if self.execution.train and not self.is_initializing():
            batch_mean, batch_variance, seen = self._statistics(x, mask)
            use_mean = jnp.where(seen, batch_mean, mean.value)
            use_variance = jnp.where(seen, batch_variance, variance.value)
            for running, now in ((mean, use_mean), (variance, use_variance)):
                kept = BATCH_NORM_MOMENTUM * running.value
                running.value = kept + (1 - BATCH_NORM_MOMENTUM) * now
        else:
            use_mean, use_variance = mean.value, variance.value
        factor = scale * jax.lax.rsqrt(use_variance + BATCH_NORM_EPSILON)
        use_mean, factor, bias = (_tile(a, packed) for a in (use_mean, factor, bias))
        return ((x - use_mean) * factor + bias).astype(dtype)

    def _statistics(self, x, mask):
        if mask is None:
            mask = jnp.ones(len(x), bool)
        mask = mask.reshape(-1, *[1] * (x.ndim - 1))
        axes, packed = tuple(range(x.ndim - 1)), self.execution.packed
        masked = jnp.where(mask, x, 0)
        size = mask.sum(dtype=x.dtype) * (x.size // (len(x) * x.shape[-1]) * packed)
        first, second = (_untile(a.sum(axes), packed) for a in (masked, jnp.square(masked)))
        sums = size, first, second
        if self.execution.axis_name is not None:
            sums = jax.lax.psum(sums, self.execution.axis_name)
        size, first, second = sums
        mean = first / jnp.maximum(size, 1)
        variance = jnp.maximum(second / jnp.maximum(size, 1) - jnp.square(mean), 0)
        return mean, variance, size > 0


def _tile(values, packed):
    """[C] for each of the pixels that are packed, [packed C]."""
    return values if packed == 1 else jnp.tile(values, packed)


def _untile(sums, packed):
    """Sums [packed C] of each packed pixel, together [C]."""
    return sums if packed == 1 else sums.reshape(packed, -1).sum(0)


def _lost(kernel: int, padding: str) -> int:
    """By how many columns the output of a convolution is narrower."""
    return kernel - 1 if padding == "VALID" else 0


class Conv(nn.Module):
    """A convolution [N, H, W, C] -> [N, H, W, features], with the parameters of flax's own.

    `is_packed`: what it is given is packed already, and what it returns is.
    """

    execution: Execution
    features: int
    kernel: int = 3
    stride: int = 1
    padding: str = "SAME"
    use_bias: bool = True
    is_packed: bool = False

    @nn.compact
    def __call__(self, x):
        if self.is_packed:
            return self._convolve(self.execution, x)
        execution = self.execution.fitting(x, self.stride, _lost(self.kernel, self.padding))
        return execution.unpack(self._convolve(execution, execution.pack(x)))

    def _convolve(self, execution, x):
        channels = x.shape[-1] // execution.packed
        shape = (self.kernel, self.kernel, channels, self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        if execution.packed > 1:
            kernel = pack_kernel(kernel, execution.packed, self.padding)
        x, kernel = execution.cast(x, kernel)
        x = jax.lax.conv_general_dilated(
            x,
            kernel,
            (self.stride,) * 2,
            self.padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        if not self.use_bias:
            return x
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return x + _tile(bias, execution.packed).astype(x.dtype)


def pack_kernel(kernel: jax.Array, packed: int, padding: str) -> jax.Array:
    """The kernel [k, k, C, F] of a convolution as one of packed activations.

    Activations are [N, H, W / packed, packed C]. The result is [k, t, packed C, packed F] for t
    groups of pixels. Most of it is 0: arithmetic doubles for two pixels, and memory traffic, which
    is what bounds a step on a TPU, is halved.
    """
    size = kernel.shape[1]
    # The leftmost pixel that an output sees, relative to its own.
    first = -((size - 1) // 2) if padding == "SAME" else 0
    last_group = (first + size - 1 + packed - 1) // packed
    groups = np.arange(-last_group if padding == "SAME" else 0, last_group + 1)
    pixel = np.arange(packed)
    offset = packed * groups[:, None, None] + pixel[:, None] - pixel - first  # [t, in, out]
    choice = (offset[..., None] == np.arange(size)).astype(np.float32)
    kernel = jnp.einsum("hwio,tabw->htaibo", kernel, choice, precision="highest")
    k, t, _, channels, _, features = kernel.shape
    return kernel.reshape(k, t, packed * channels, packed * features)


class ConvLayer(nn.Module):
    """Convolution, leaky ReLU, batch normalisation; see `Conv`."""

    execution: Execution
    features: int
    kernel: int = 3
    stride: int = 1
    padding: str = "SAME"
    is_packed: bool = False

    @nn.compact
    def __call__(self, x, mask=None):
        execution = self.execution
        if not self.is_packed:
            execution = execution.fitting(x, self.stride, _lost(self.kernel, self.padding))
            x = execution.pack(x)
        conv = Conv(
            execution, self.features, self.kernel, self.stride, self.padding, is_packed=True
        )
        x = BatchNorm(execution)(nn.leaky_relu(conv(x)), mask)
        return x if self.is_packed else execution.unpack(x)


class ResidualBlock(nn.Module):
    """x + two layers of x; the skip is projected where the width changes.

    Without padding ("VALID") the skip loses the border that the layers lose.
    """

    execution: Execution
    features: int
    padding: str = "SAME"
    linear: bool = False  # neither leaky ReLU nor batch normalisation

    @nn.compact
    def __call__(self, x, mask=None, inside=None):
        """`inside` [N, H, W, 1]: activations elsewhere are 0, as beyond the border."""
        execution = self.execution.fitting(x) if inside is None else self.execution.plain()
        x = execution.pack(*execution.cast(x))
        y = x
        for _ in range(2):
            if self.linear:
                y = Conv(execution, self.features, padding=self.padding, is_packed=True)(y)
            else:
                layer = ConvLayer(execution, self.features, padding=self.padding, is_packed=True)
                y = layer(y, mask)
            y = _keep(y, inside)
        if self.padding == "VALID":
            columns = 2 // execution.packed
            x = x[:, 2:-2, columns:-columns]
        if x.shape[-1] != y.shape[-1]:
            x = Conv(execution, self.features, 1, use_bias=False, is_packed=True)(x)
        return execution.unpack(x + y)


def space_to_depth(x: jax.Array, factor: int) -> jax.Array:
    """[B, H, W, C] -> [B, H/f, W/f, f f C]."""
    b, h, w, c = x.shape
    x = x.reshape(b, h // factor, factor, w // factor, factor, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h // factor, w // factor, factor**2 * c)


def depth_to_space(x: jax.Array, factor: int) -> jax.Array:
    """[B, H, W, f f C] -> [B, f H, f W, C]; the inverse of `space_to_depth`."""
    b, h, w, c = x.shape
    x = x.reshape(b, h, w, factor, factor, c // factor**2)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h * factor, w * factor, c // factor**2)


def blur(maps: jax.Array, factor: int) -> jax.Array:
    """Maps [B, H, W], each pixel a mean of those around it.

    The weights fall linearly to 0 at a distance of `factor`, in rows and in columns: a tent.
    Of pixels with the same row and column modulo `factor` it takes in the same share anywhere.
    """
    rows, columns = (_tent(side, factor) for side in maps.shape[1:])
    return jnp.einsum("hi,bij,wj->bhw", rows, maps, columns)


def _tent(length: int, reach: int) -> jax.Array:
    position = jnp.arange(length)
    weights = jnp.maximum(reach - jnp.abs(position[:, None] - position), 0)
    return weights / weights.sum(1, keepdims=True)


def filtered(maps: jax.Array, weights: np.ndarray) -> jax.Array:
    """Maps [B, H, W], each pixel a sum of those around it, by weights of rows and of columns.

    In all its digits on any platform: what is done with it compares pixels that are nearly alike.
    """
    rows, columns = (_band(side, weights) for side in maps.shape[1:])
    return jnp.einsum("hi,bij,wj->bhw", rows, maps, columns, precision="highest")


def _band(length: int, weights: np.ndarray) -> np.ndarray:
    position = np.arange(length)
    offset = position - position[:, None] + len(weights) // 2
    inside = (offset >= 0) & (offset < len(weights))
    band = np.where(inside, weights[np.clip(offset, 0, len(weights) - 1)], 0)
    return band.astype(np.float32)


def pad_to_multiple(x: jax.Array, factor: int) -> jax.Array:
    """Adds black rows and columns below and to the right."""
    height, width = x.shape[1:3]
    return jnp.pad(x, ((0, 0), (0, -height % factor), (0, -width % factor), (0, 0)))


# --- the three networks of LAVAE ---------------------------------------------


class LocationNet(nn.Module):
    """Images [B, H, W, C] -> location logits before γ, [B, H, W].

    Images may be padded with black, below and to the right, to a common size. With their own
    `size` [B, 2], rows and columns, padding changes no logit: activations beyond the border of the
    image are kept at 0, as the padding of a convolution is. What is returned there is arbitrary.
    """

    settings: LocationSettings
    execution: Execution

    @nn.compact
    def __call__(self, x, size=None):
        settings, factor = self.settings, self.settings.space_to_depth
        height, width = x.shape[1:3]
        x = space_to_depth(pad_to_multiple(x, factor), factor)
        inside = None if size is None else is_inside(-(-size // factor), x.shape[1:3])[..., None]
        for _ in range(settings.blocks):
            x = ResidualBlock(self.execution, settings.width)(x, inside=inside)
        for _ in range(2):
            x = _keep(ConvLayer(self.execution, settings.head_width)(x), inside)
        # In float32: γ would magnify the rounding error.
        x = Conv(self.execution.exact(), factor**2)(x)
        x = depth_to_space(x, factor)[:, :height, :width, 0]
        if not settings.blur_logits:
            return x
        if size is None:
            return blur(x, factor)
        inside = is_inside(size, (height, width)).astype(x.dtype)
        return blur(x * inside, factor) / jnp.maximum(blur(inside, factor), 1e-6)


def scale_logits(params: Mapping[str, Any], scale: float, shift: float) -> dict[str, Any]:
    """The parameters of a `LocationNet` whose logits are `scale` times those, plus `shift`."""
    last = {"kernel": scale * params["Conv_0"]["kernel"]}
    last["bias"] = scale * params["Conv_0"]["bias"] + shift
    return {**params, "Conv_0": last}


def is_inside(size: jax.Array, canvas: tuple[int, int]) -> jax.Array:
    """[B, H, W]: the pixels of a canvas that images of `size` [B, 2] cover."""
    rows, columns = (jnp.arange(side) for side in canvas)
    return (rows[:, None] < size[:, 0, None, None]) & (columns < size[:, 1, None, None])


def _keep(x, inside):
    return x if inside is None else jnp.where(inside, x, 0)


class AppearanceNet(nn.Module):
    """Images with a black margin of `radius` around them -> h_app, [B, H, W, 2L].

    No layer is padded, so a window of 2 radius + 1 pixels gives the one vector that
    belongs to its centre, the same as the map has there, on the border as elsewhere:
    beyond it, both see a black canvas.
    """

    settings: AppearanceSettings
    outputs: int
    execution: Execution

    @property
    def radius(self) -> int:
        return self.settings.radius

    @nn.compact
    def __call__(self, x, mask=None):
        return self._dense(x) if self.settings.network == "dense" else self._residual(x, mask)

    def _dense(self, x):
        size = self.settings.window
        first, *rest = self.settings.hidden
        kernel = self.param(
            "kernel", nn.initializers.lecun_normal(), (size, size, x.shape[-1], first)
        )
        bias = self.param("bias", nn.initializers.zeros, (first,))
        if x.shape[1:3] == (size, size):  # one position: a matrix product
            x = x.reshape(len(x), -1) @ kernel.reshape(-1, first)
            x = x[:, None, None]
        else:
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        x = nn.leaky_relu(x + bias)
        for features in rest:
            x = nn.leaky_relu(nn.Dense(features)(x))
        return nn.Dense(self.outputs)(x)

    def _residual(self, x, mask):
        for _ in range(self.settings.blocks):
            x = ResidualBlock(self.execution, self.settings.width, "VALID")(x, mask)
        return Conv(self.execution.exact(), self.outputs, padding="VALID")(x)


class SpriteDecoder(nn.Module):
    """f_sprite: appearance [P, L] -> sprites [P, h, w, C] in (0, 1)."""

    settings: DecoderSettings
    size: int
    channels: int
    execution: Execution

    @nn.compact
    def __call__(self, z, mask=None):
        dense = self.settings.network == "dense"
        return nn.sigmoid(self._dense(z) if dense else self._residual(z, mask))

    def _dense(self, z):
        x = z
        for features in self.settings.hidden:
            x = nn.leaky_relu(nn.Dense(features)(x))
        x = nn.Dense(self.size**2 * self.channels)(x)
        return x.reshape(-1, self.size, self.size, self.channels)

    def _residual(self, z, mask):
        settings = self.settings
        x = nn.leaky_relu(nn.Dense(settings.seed_size**2 * settings.seed_channels)(z))
        x = x.reshape(-1, settings.seed_size, settings.seed_size, settings.seed_channels)
        x = BatchNorm(self.execution)(x, mask)
        x = ConvLayer(self.execution, settings.seed_channels)(x, mask)
        shape = (len(x), self.size, self.size)
        x = jax.image.resize(x, (*shape, settings.seed_channels), "bilinear")
        expanded = jnp.broadcast_to(z[:, None, None], (*shape, z.shape[-1]))
        x = jnp.concatenate([x, expanded], axis=-1)
        for block in range(settings.blocks):
            last = block == settings.blocks - 1
            x = ResidualBlock(self.execution, settings.width, linear=last)(x, mask)
        return Conv(self.execution.exact(), self.channels)(x)
