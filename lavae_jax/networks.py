"""The networks of Appendix B. They compute features and know no probability.

Every convolution is followed by leaky ReLU and batch normalisation unless it says
otherwise. In training, batch statistics are shared over `axis_name` (the devices of
a pmap) and, where a mask is given, taken over the examples that it marks.
"""

import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

BATCH_NORM_MOMENTUM = 0.9
BATCH_NORM_EPSILON = 1e-5


# --- settings ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LocationConfig:
    """h_loc: a residual network and a convolutional head."""

    width: int = 48
    blocks: int = 4
    head_width: int = 32
    space_to_depth: int = 1


@dataclasses.dataclass(frozen=True)
class AppearanceConfig:
    """h_app: a residual network, or fully connected layers on the window.

    kind: `residual` uses width, blocks and space_to_depth; `window` uses window
        (its size in pixels, odd) and hidden (the layers' widths).
    form: `map` computes h_app at every pixel and reads it at the locations, as in
        the paper; `windows` computes it at the locations only.
    """

    kind: Literal["residual", "window"] = "residual"
    form: Literal["map", "windows"] = "map"
    width: int = 48
    blocks: int = 4
    space_to_depth: int = 1
    window: int = 21
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self):
        if self.kind not in ("residual", "window"):
            raise ValueError(f"appearance kind={self.kind!r}: there are 'residual', 'window'")
        if self.form not in ("map", "windows"):
            raise ValueError(f"appearance form={self.form!r}: there are 'map', 'windows'")
        if self.kind == "window" and (self.window < 1 or self.window % 2 == 0):
            raise ValueError(f"appearance window={self.window} must be odd")
        if self.form == "windows" and self.kind == "residual" and self.space_to_depth != 1:
            raise ValueError(
                f"appearance space_to_depth={self.space_to_depth} needs form='map': behind "
                "it, the network's value at a pixel is not a function of the window around it"
            )


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """f_sprite: the paper's convolutional network, or fully connected layers.

    kind: `residual` uses width, blocks, seed_size and seed_channels (the tensor that
        the fully connected layer fills); `dense` uses hidden (the layers' widths).
    """

    kind: Literal["residual", "dense"] = "residual"
    width: int = 48
    blocks: int = 3
    seed_size: int = 8
    seed_channels: int = 16
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self):
        if self.kind not in ("residual", "dense"):
            raise ValueError(f"decoder kind={self.kind!r}: there are 'residual', 'dense'")


# --- parts -------------------------------------------------------------------


class BatchNorm(nn.Module):
    """Batch normalisation over the examples that a mask [N] marks, on all devices.

    flax's own averages the devices' means, which is wrong where devices hold different
    numbers of objects. With no example anywhere, the running statistics serve and stay.
    """

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train, mask=None):
        shape, ones = (x.shape[-1],), nn.initializers.ones
        scale = self.param("scale", ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        variance = self.variable("batch_stats", "var", jnp.ones, shape)
        if train and not self.is_initializing():
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

    features: int
    kernel: int = 3
    stride: int = 1
    padding: str = "SAME"
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train, mask=None):
        x = nn.Conv(self.features, (self.kernel,) * 2, (self.stride,) * 2, padding=self.padding)(x)
        return BatchNorm(self.axis_name)(nn.leaky_relu(x), train, mask)


class ResidualBlock(nn.Module):
    """x + two layers of x; the skip is projected where the width changes.

    Without padding ("VALID") the skip loses the border that the layers lose.
    """

    features: int
    padding: str = "SAME"
    linear: bool = False  # neither leaky ReLU nor batch normalisation
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train, mask=None):
        y = x
        for _ in range(2):
            if self.linear:
                y = nn.Conv(self.features, (3, 3), padding=self.padding)(y)
            else:
                layer = ConvLayer(self.features, padding=self.padding, axis_name=self.axis_name)
                y = layer(y, train, mask)
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


def pad_to_multiple(x: jax.Array, factor: int) -> jax.Array:
    """Adds black rows and columns below and to the right."""
    height, width = x.shape[1:3]
    return jnp.pad(x, ((0, 0), (0, -height % factor), (0, -width % factor), (0, 0)))


# --- the three networks of LAVAE ---------------------------------------------


class LocationNet(nn.Module):
    """Images [B, H, W, C] -> location logits before γ, [B, H, W]."""

    config: LocationConfig
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train):
        config, factor = self.config, self.config.space_to_depth
        height, width = x.shape[1:3]
        x = space_to_depth(pad_to_multiple(x, factor), factor)
        for _ in range(config.blocks):
            x = ResidualBlock(config.width, axis_name=self.axis_name)(x, train)
        for _ in range(2):
            x = ConvLayer(config.head_width, axis_name=self.axis_name)(x, train)
        x = nn.Conv(factor**2, (3, 3))(x)
        return depth_to_space(x, factor)[:, :height, :width, 0]


class AppearanceNet(nn.Module):
    """Images with a black margin of `radius` around them -> h_app, [B, H, W, 2L].

    No layer is padded (unless behind space-to-depth), so a window of 2 radius + 1
    pixels gives the one vector that belongs to its centre, the same as the map has
    there, on the border as elsewhere: beyond it, both see a black canvas.
    """

    config: AppearanceConfig
    outputs: int
    axis_name: str | None = None

    @property
    def radius(self) -> int:
        """How far the network sees; 0 behind space-to-depth, which pads each layer."""
        if self.config.kind == "window":
            return self.config.window // 2
        return 2 * self.config.blocks + 1 if self.config.space_to_depth == 1 else 0

    @nn.compact
    def __call__(self, x, train, mask=None):
        if self.config.kind == "window":
            return self._window(x)
        return self._residual(x, train, mask)

    def _window(self, x):
        size = self.config.window
        first, *rest = self.config.hidden
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

    def _residual(self, x, train, mask):
        config, factor = self.config, self.config.space_to_depth
        padding = "VALID" if factor == 1 else "SAME"
        height, width = x.shape[1:3]
        x = space_to_depth(pad_to_multiple(x, factor), factor)
        for _ in range(config.blocks):
            x = ResidualBlock(config.width, padding, axis_name=self.axis_name)(x, train, mask)
        x = nn.Conv(self.outputs * factor**2, (3, 3), padding=padding)(x)
        return x if factor == 1 else depth_to_space(x, factor)[:, :height, :width]


class SpriteDecoder(nn.Module):
    """f_sprite: appearance [P, L] -> sprites [P, h, w, C] in (0, 1)."""

    config: DecoderConfig
    size: int
    channels: int
    axis_name: str | None = None

    @nn.compact
    def __call__(self, z, train, mask=None):
        logits = self._dense(z) if self.config.kind == "dense" else self._residual(z, train, mask)
        return nn.sigmoid(logits)

    def _dense(self, z):
        x = z
        for features in self.config.hidden:
            x = nn.leaky_relu(nn.Dense(features)(x))
        x = nn.Dense(self.size**2 * self.channels)(x)
        return x.reshape(-1, self.size, self.size, self.channels)

    def _residual(self, z, train, mask):
        config = self.config
        x = nn.leaky_relu(nn.Dense(config.seed_size**2 * config.seed_channels)(z))
        x = x.reshape(-1, config.seed_size, config.seed_size, config.seed_channels)
        x = BatchNorm(self.axis_name)(x, train, mask)
        x = ConvLayer(config.seed_channels, axis_name=self.axis_name)(x, train, mask)
        shape = (len(x), self.size, self.size)
        x = jax.image.resize(x, (*shape, config.seed_channels), "bilinear")
        expanded = jnp.broadcast_to(z[:, None, None], (*shape, z.shape[-1]))
        x = jnp.concatenate([x, expanded], axis=-1)
        for block in range(config.blocks):
            last = block == config.blocks - 1
            residual = ResidualBlock(config.width, linear=last, axis_name=self.axis_name)
            x = residual(x, train, mask)
        return nn.Conv(self.channels, (3, 3))(x)


# --- variational autoencoders with a grid of latents -------------------------


# Strides after the auxiliary VAE's residual blocks, by the factor of its space-to-depth
# stem; the product of all is 6.
AUXILIARY_STRIDES = {1: (2, 3, None), 2: (3, None), 6: (None,)}


class AuxiliaryEncoder(nn.Module):
    """Images -> mean and log variance of a grid of latents, one for 6 x 6 pixels."""

    width: int
    latents: int
    space_to_depth: int = 1
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train):
        x = space_to_depth(x, self.space_to_depth)
        for stride in AUXILIARY_STRIDES[self.space_to_depth]:
            x = ResidualBlock(self.width, axis_name=self.axis_name)(x, train)
            if stride:
                x = ConvLayer(self.width, stride=stride, axis_name=self.axis_name)(x, train)
        return nn.Conv(2 * self.latents, (3, 3))(x)


class AuxiliaryDecoder(nn.Module):
    """A grid of latents -> pixel logits, 6 x 6 for each."""

    width: int
    channels: int
    space_to_depth: int = 1
    axis_name: str | None = None

    @nn.compact
    def __call__(self, z, train):
        x = z
        for factor in (*reversed(AUXILIARY_STRIDES[self.space_to_depth][:-1]), None):
            x = ResidualBlock(self.width, axis_name=self.axis_name)(x, train)
            if factor:
                x = jnp.repeat(jnp.repeat(x, factor, axis=1), factor, axis=2)
                x = ConvLayer(self.width, axis_name=self.axis_name)(x, train)
        x = nn.Conv(self.channels * self.space_to_depth**2, (3, 3))(x)
        return depth_to_space(x, self.space_to_depth)


# Which residual blocks of the baseline's encoder halve the resolution, and which of its
# decoder's double it, by space-to-depth. Without it, the ends do so once more.
BASELINE_DOWN = {1: (True, True, False, False), 8: (False,) * 3}
BASELINE_UP = {1: (False, True, True, False), 8: (False,) * 3}


class BaselineEncoder(nn.Module):
    """Images -> mean and log variance of a grid of latents, one for 8 x 8 pixels.

    A space-to-depth stem does without the layers at higher resolutions.
    """

    width: int
    latents: int
    space_to_depth: int = 1
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train):
        if self.space_to_depth == 1:
            x = ConvLayer(self.width, kernel=4, stride=2, axis_name=self.axis_name)(x, train)
        x = space_to_depth(x, self.space_to_depth)
        for downsample in BASELINE_DOWN[self.space_to_depth]:
            x = ResidualBlock(self.width, axis_name=self.axis_name)(x, train)
            if downsample:
                x = nn.Conv(self.width, (4, 4), (2, 2))(x)
        return nn.Conv(2 * self.latents, (3, 3))(x)


class BaselineDecoder(nn.Module):
    """A grid of latents -> pixel logits, 8 x 8 for each."""

    width: int
    channels: int
    space_to_depth: int = 1
    axis_name: str | None = None

    @nn.compact
    def __call__(self, z, train):
        x = ConvLayer(self.width, axis_name=self.axis_name)(z, train)
        for upsample in BASELINE_UP[self.space_to_depth]:
            x = ResidualBlock(self.width, axis_name=self.axis_name)(x, train)
            if upsample:
                x = nn.ConvTranspose(self.width, (4, 4), (2, 2))(x)
        if self.space_to_depth == 1:
            b, h, w, c = x.shape
            x = jax.image.resize(x, (b, 2 * h, 2 * w, c), "bilinear")
        x = ConvLayer(self.width, axis_name=self.axis_name)(x, train)
        x = nn.Conv(self.channels * self.space_to_depth**2, (3, 3))(x)
        return depth_to_space(x, self.space_to_depth)
