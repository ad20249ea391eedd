"""The networks of Appendix B. They compute features and know no probability.

Every convolution is followed by leaky ReLU and batch normalisation unless it says
otherwise. Each network is given its `norm`, a `BatchNorm` that knows whether the network
is being trained and over which devices; where a mask is given, batch statistics are
taken over the examples that it marks.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lavae_jax.settings import AppearanceSettings, DecoderSettings, LocationSettings

BATCH_NORM_MOMENTUM = 0.9
BATCH_NORM_EPSILON = 1e-5

Norm = Callable[[], nn.Module]


# --- parts -------------------------------------------------------------------


class BatchNorm(nn.Module):
    """Batch normalisation over the examples that a mask [N] marks, on all devices.

    flax's own averages the devices' means, which is wrong where devices hold different
    numbers of objects. With no example anywhere, the running statistics serve and stay.
    """

    train: bool = False
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, mask=None):
        shape, ones = (x.shape[-1],), nn.initializers.ones
        scale = self.param("scale", ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        variance = self.variable("batch_stats", "var", jnp.ones, shape)
        if self.train and not self.is_initializing():
            batch_mean, batch_variance, seen = self._statistics(x, mask)
            use_mean = jnp.where(seen, batch_mean, mean.value)
            use_variance = jnp.where(seen, batch_variance, variance.value)
            for running, now in ((mean, use_mean), (variance, use_variance)):
                kept = BATCH_NORM_MOMENTUM * running.value
                running.value = kept + (1 - BATCH_NORM_MOMENTUM) * now
        else:
            use_mean, use_variance = mean.value, variance.value
        return (x - use_mean) * (scale * jax.lax.rsqrt(use_variance + BATCH_NORM_EPSILON)) + bias

    def _statistics(self, x, mask):
        if mask is None:
            mask = jnp.ones(len(x), bool)
        mask = mask.reshape(-1, *[1] * (x.ndim - 1))
        axes = tuple(range(x.ndim - 1))
        masked = jnp.where(mask, x, 0)
        size = mask.sum(dtype=x.dtype) * (x.size // (len(x) * x.shape[-1]))
        sums = size, masked.sum(axes), jnp.square(masked).sum(axes)
        if self.axis_name is not None:
            sums = jax.lax.psum(sums, self.axis_name)
        size, first, second = sums
        mean = first / jnp.maximum(size, 1)
        variance = jnp.maximum(second / jnp.maximum(size, 1) - jnp.square(mean), 0)
        return mean, variance, size > 0


class ConvLayer(nn.Module):
    """Convolution, leaky ReLU, batch normalisation."""

    norm: Norm
    features: int
    kernel: int = 3
    stride: int = 1
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x, mask=None):
        x = nn.Conv(self.features, (self.kernel,) * 2, (self.stride,) * 2, padding=self.padding)(x)
        return self.norm()(nn.leaky_relu(x), mask)


class ResidualBlock(nn.Module):
    """x + two layers of x; the skip is projected where the width changes.

    Without padding ("VALID") the skip loses the border that the layers lose.
    """

    norm: Norm
    features: int
    padding: str = "SAME"
    linear: bool = False  # neither leaky ReLU nor batch normalisation

    @nn.compact
    def __call__(self, x, mask=None):
        y = x
        for _ in range(2):
            if self.linear:
                y = nn.Conv(self.features, (3, 3), padding=self.padding)(y)
            else:
                y = ConvLayer(self.norm, self.features, padding=self.padding)(y, mask)
        if self.padding == "VALID":
            x = x[:, 2:-2, 2:-2]
        if x.shape[-1] != self.features:
            x = nn.Conv(self.features, (1, 1), use_bias=False)(x)
        return x + y


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
    place = jnp.arange(length)
    weights = jnp.maximum(reach - jnp.abs(place[:, None] - place), 0)
    return weights / weights.sum(1, keepdims=True)


def filtered(maps: jax.Array, weights: np.ndarray) -> jax.Array:
    """Maps [B, H, W], each pixel a sum of those around it, by weights of rows and of columns.

    In all its digits on any platform: what is done with it compares pixels that are nearly alike.
    """
    rows, columns = (_band(side, weights) for side in maps.shape[1:])
    return jnp.einsum("hi,bij,wj->bhw", rows, maps, columns, precision="highest")


def _band(length: int, weights: np.ndarray) -> np.ndarray:
    place = np.arange(length)
    offset = place - place[:, None] + len(weights) // 2
    inside = (offset >= 0) & (offset < len(weights))
    band = np.where(inside, weights[np.clip(offset, 0, len(weights) - 1)], 0)
    return band.astype(np.float32)


def pad_to_multiple(x: jax.Array, factor: int) -> jax.Array:
    """Adds black rows and columns below and to the right."""
    height, width = x.shape[1:3]
    return jnp.pad(x, ((0, 0), (0, -height % factor), (0, -width % factor), (0, 0)))


# --- the three networks of LAVAE ---------------------------------------------


class LocationNet(nn.Module):
    """Images [B, H, W, C] -> location logits before γ, [B, H, W]."""

    settings: LocationSettings
    norm: Norm

    @nn.compact
    def __call__(self, x):
        settings, factor = self.settings, self.settings.space_to_depth
        height, width = x.shape[1:3]
        x = space_to_depth(pad_to_multiple(x, factor), factor)
        for _ in range(settings.blocks):
            x = ResidualBlock(self.norm, settings.width)(x)
        for _ in range(2):
            x = ConvLayer(self.norm, settings.head_width)(x)
        x = depth_to_space(nn.Conv(factor**2, (3, 3))(x), factor)[:, :height, :width, 0]
        return blur(x, factor) if settings.blurred else x


class AppearanceNet(nn.Module):
    """Images with a black margin of `radius` around them -> h_app, [B, H, W, 2L].

    No layer is padded, so a window of 2 radius + 1 pixels gives the one vector that
    belongs to its centre, the same as the map has there, on the border as elsewhere:
    beyond it, both see a black canvas.
    """

    settings: AppearanceSettings
    outputs: int
    norm: Norm

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
            x = ResidualBlock(self.norm, self.settings.width, "VALID")(x, mask)
        return nn.Conv(self.outputs, (3, 3), padding="VALID")(x)


class SpriteDecoder(nn.Module):
    """f_sprite: appearance [P, L] -> sprites [P, h, w, C] in (0, 1)."""

    settings: DecoderSettings
    size: int
    channels: int
    norm: Norm

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
        x = self.norm()(x, mask)
        x = ConvLayer(self.norm, settings.seed_channels)(x, mask)
        shape = (len(x), self.size, self.size)
        x = jax.image.resize(x, (*shape, settings.seed_channels), "bilinear")
        expanded = jnp.broadcast_to(z[:, None, None], (*shape, z.shape[-1]))
        x = jnp.concatenate([x, expanded], axis=-1)
        for block in range(settings.blocks):
            last = block == settings.blocks - 1
            x = ResidualBlock(self.norm, settings.width, linear=last)(x, mask)
        return nn.Conv(self.channels, (3, 3))(x)
