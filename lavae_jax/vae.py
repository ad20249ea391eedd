"""Fully convolutional VAEs whose latents form a grid (App. B).

The auxiliary VAE shows the location network during warm-up where objects are; the baseline is what
LAVAE is compared with, with the paper's networks or those of `glimpse`. Settings of each
architecture build a `GridVAE`; the functions take a bound one.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from lavae_jax import bernoulli, gaussian, glimpse, model
from lavae_jax.gaussian import Gaussian
from lavae_jax.networks import (
    Conv,
    ConvLayer,
    Execution,
    ResidualBlock,
    depth_to_space,
    pad_to_multiple,
    space_to_depth,
)
from lavae_jax.objective import Bound
from lavae_jax.settings import check_choices, from_config

# --- stages: (execution, width) -> a layer ----------------------------------------


def _residual(execution, width):
    return ResidualBlock(execution, width)


def _layer(execution, width):
    return ConvLayer(execution, width)


def _down(stride, kernel=3):
    return lambda execution, width: ConvLayer(execution, width, kernel, stride)


def _plain_down(execution, width):
    return nn.Conv(width, (4, 4), (2, 2))


def _plain_up(execution, width):
    return nn.ConvTranspose(width, (4, 4), (2, 2))


def _repeat(factor):
    def enlarge(x):
        return jnp.repeat(jnp.repeat(x, factor, axis=1), factor, axis=2)

    return lambda execution, width: enlarge


def _bilinear(execution, width):
    def enlarge(x):
        b, h, w, c = x.shape
        return jax.image.resize(x, (b, 2 * h, 2 * w, c), "bilinear")

    return enlarge


class Stages(NamedTuple):
    encoder: tuple[Callable, ...]
    decoder: tuple[Callable, ...]


# By the stem's space-to-depth factor; a stem as large as a cell leaves layers at the resolution of
# the latents alone. The auxiliary VAE has 11 x 11 x 8 latents for 64 x 64 pixels.
_AUXILIARY = {
    1: Stages(
        (_residual, _down(2), _residual, _down(3), _residual),
        (_residual, _repeat(3), _layer, _residual, _repeat(2), _layer, _residual),
    ),
    2: Stages((_residual, _down(3), _residual), (_residual, _repeat(3), _layer, _residual)),
}
_COARSE_AUXILIARY = Stages((_residual,), (_residual,))
# The baseline has 8 x 8 x 16 = 1024 latents, and about a million parameters.
_BASELINE = {
    1: Stages(
        (_down(2, 4), _residual, _plain_down, _residual, _plain_down, _residual, _residual),
        (
            *(_layer, _residual, _residual, _plain_up, _residual, _plain_up, _residual),
            *(_bilinear, _layer),
        ),
    ),
    8: Stages((_residual,) * 3, (_layer, _residual, _residual, _residual, _layer)),
}


# --- the module --------------------------------------------------------------


class Stack(nn.Module):
    """Stages, and a convolution that gives the number of features requested."""

    stages: tuple[Callable, ...]
    width: int
    outputs: int
    execution: Execution

    @nn.compact
    def __call__(self, x):
        for stage in self.stages:
            x = stage(self.execution, self.width)(x)
        return Conv(self.execution.exact(), self.outputs)(x)


class GridVAE(nn.Module):
    """A VAE with a grid of latents; its settings build it.

    cell: pixels of a latent, in each direction.
    decode_in_turn: whether samples are decoded one after the other. On a CPU, sprites of all
        samples are more than its cache holds, but convolutions are slow in a loop.
    """

    encoder: nn.Module  # [B, H / f, W / f, f² C] -> [B, h, w, 2 latents]
    decoder: nn.Module  # [B, h, w, latents] -> [B, H / f, W / f, f² C]
    channels: int
    latents: int
    cell: int
    space_to_depth: int = 1  # f
    decode_in_turn: bool = False

    def __call__(self) -> None:
        """Both networks on the least input; Flax initialises what is called."""
        canvas = (self.cell, self.cell)
        q = self.encode(jnp.zeros((1, *canvas, self.channels)))
        self.decode(q.mean, canvas)

    def encode(self, x: jax.Array) -> Gaussian:
        """q(z | x), a grid [B, h, w, latents]."""
        padded = pad_to_multiple(x, self.cell)
        return gaussian.from_features(self.encoder(space_to_depth(padded, self.space_to_depth)))

    def decode(self, z: jax.Array, canvas: tuple[int, int]) -> jax.Array:
        """Pixel logits [B, H, W, C]."""
        logits = depth_to_space(self.decoder(z), self.space_to_depth)
        return logits[:, : canvas[0], : canvas[1]]


# --- architectures -----------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuxiliarySettings:
    """The auxiliary VAE of the warm-up.

    cell: pixels of a latent, in each direction.
    activations, packed_pixels: as in `LavaeSettings`.
    """

    channels: int
    width: int
    latents: int
    space_to_depth: int
    cell: int = 6
    activations: Literal["float32", "bfloat16"] = "float32"
    packed_pixels: Literal[1, 2] = 1

    def __post_init__(self):
        check_choices("auxiliary VAE", self)
        factors = [*_AUXILIARY, self.cell] if self.cell == 6 else [self.cell]
        _check_stem("auxiliary", self.space_to_depth, factors)

    def build(self, train: bool = False, axis_name: str | None = None) -> GridVAE:
        is_coarse = self.space_to_depth == self.cell
        stages = _COARSE_AUXILIARY if is_coarse else _AUXILIARY[self.space_to_depth]
        return _stacked(self, stages, self.cell, train, axis_name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineSettings:
    """The paper's baseline.

    activations, packed_pixels: as in `LavaeSettings`.
    """

    channels: int
    width: int
    latents: int
    space_to_depth: int
    activations: Literal["float32", "bfloat16"] = "float32"
    packed_pixels: Literal[1, 2] = 1

    def __post_init__(self):
        check_choices("baseline", self)
        _check_stem("baseline", self.space_to_depth, list(_BASELINE))

    def build(self, train: bool = False, axis_name: str | None = None) -> GridVAE:
        return _stacked(self, _BASELINE[self.space_to_depth], BASELINE_CELL, train, axis_name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlimpseSettings:
    """The baseline with the networks of `glimpse`.

    kernel: the side of what a latent sees and draws, in pixels.
    """

    channels: int
    width: int
    latents: int
    kernel: int

    def __post_init__(self):
        if self.kernel <= 2 * BASELINE_CELL or self.kernel % 2 == 0:
            raise ValueError(
                f"glimpse kernel={self.kernel} must be odd and more than {2 * BASELINE_CELL}, "
                "which is two cells"
            )

    def build(self, train: bool = False, axis_name: str | None = None) -> GridVAE:
        del train, axis_name  # no batch normalisation
        sizes = BASELINE_CELL, self.kernel, self.width
        return GridVAE(
            glimpse.Encoder(*sizes, 2 * self.latents, parent=None),
            glimpse.Decoder(*sizes, self.channels, parent=None),
            self.channels,
            self.latents,
            BASELINE_CELL,
            decode_in_turn=True,
        )


BASELINE_CELL = 8  # pixels of a latent of the baseline, in each direction
BASELINES = {"baseline": BaselineSettings, "glimpse": GlimpseSettings}


def baseline_settings(model: Mapping[str, Any]) -> BaselineSettings | GlimpseSettings:
    """From the `model` of a baseline's config."""
    model = dict(model)
    architecture = model.pop("architecture", "baseline")
    if architecture not in BASELINES:
        raise ValueError(
            f"model architecture={architecture!r}: expected one of {', '.join(BASELINES)}"
        )
    return from_config(BASELINES[architecture], model)


def _check_stem(name: str, factor: int, factors: list[int]) -> None:
    if factor not in factors:
        expected = " or ".join(map(str, factors))
        raise ValueError(f"{name} space_to_depth={factor} must be {expected}")


def _stacked(settings, stages: Stages, cell: int, train, axis_name) -> GridVAE:
    """A VAE of stacks of layers."""
    factor = settings.space_to_depth
    execution = Execution.of(train, axis_name, settings.activations, settings.packed_pixels)
    make = functools.partial(Stack, width=settings.width, execution=execution, parent=None)
    return GridVAE(
        make(stages.encoder, outputs=2 * settings.latents),
        make(stages.decoder, outputs=settings.channels * factor**2),
        settings.channels,
        settings.latents,
        cell,
        factor,
    )


# --- its probability ---------------------------------------------------------


class Terms(NamedTuple):
    """The parts of the ELBO."""

    log_likelihood: jax.Array  # [B]: log p(x | z)
    kl: jax.Array  # [B]

    @property
    def elbo(self) -> jax.Array:
        return self.weighted_elbo(1.0)

    def weighted_elbo(self, beta: jax.Array | float) -> jax.Array:
        """The β-VAE's objective."""
        return self.log_likelihood - beta * self.kl


class Elbo(NamedTuple):
    terms: Terms
    kl: jax.Array  # [B, h, w]: of each position of the grid


def elbo(vae: GridVAE, x: jax.Array, keys: chex.PRNGKey) -> Elbo:
    """A single-sample estimate for images [B, H, W, C]; each has a key of its own, keys [B]."""
    q = vae.encode(x)
    noise = jax.vmap(lambda key: jax.random.normal(key, q.mean.shape[1:], q.mean.dtype))(keys)
    kl = gaussian.kl_to_standard(q).sum(-1)
    return Elbo(Terms(log_likelihood(vae, x, gaussian.sample(q, noise)), kl.sum((1, 2))), kl)


def log_likelihood(vae: GridVAE, x: jax.Array, z: jax.Array) -> jax.Array:
    """log p(x | z) of images [B, H, W, C]."""
    logits = vae.decode(z, x.shape[1:3])
    return bernoulli.sum_pixels(bernoulli.log_prob_from_logits(x, logits))


def crop(x: jax.Array, keys: chex.PRNGKey, side: int) -> jax.Array:
    """A random square of each image [B, H, W, C] that contains a foreground pixel, if there is one.

    Most squares have none, and teach little. It is no larger than the image.
    """
    height, width, channels = x.shape[1:]
    side = min(side, height, width)

    def one(image, key):
        pixel_key, offset_key = jax.random.split(key)
        foreground = image.sum(-1).reshape(-1)
        pixel = jax.random.categorical(pixel_key, jnp.log(foreground + 1e-9))
        offset = jax.random.randint(offset_key, (2,), 0, side)
        row = jnp.clip(pixel // width - offset[0], 0, height - side)
        column = jnp.clip(pixel % width - offset[1], 0, width - side)
        return lax.dynamic_slice(image, (row, column, 0), (side, side, channels))

    return jax.vmap(one)(x, keys)


def log_weights(
    vae: GridVAE, x: jax.Array, keys: chex.PRNGKey, num_samples: int
) -> tuple[jax.Array, Terms]:
    """log p(x, z) - log q(z | x) of samples z ~ q(z | x), and its parts, [K, B] each."""
    q = vae.encode(x)
    shape = (num_samples, *q.mean.shape[1:])
    draw = jax.vmap(lambda key: jax.random.normal(key, shape, q.mean.dtype), out_axes=1)
    noise = draw(keys)
    log_ratio = gaussian.log_ratio_to_standard(q, noise).sum((2, 3, 4))
    terms = Terms(_log_likelihoods(vae, x, gaussian.sample(q, noise)), log_ratio)
    return terms.elbo, terms


def _log_likelihoods(vae, x, z):
    """log p(x | z) of samples z [K, B, h, w, L]: [K, B]."""
    module, variables = vae.unbind()
    one = functools.partial(model.bind(log_likelihood, module), variables, x)
    return lax.map(one, z) if vae.decode_in_turn else jax.vmap(one)(z)


def bound(vae: GridVAE, x: jax.Array, keys: chex.PRNGKey, num_samples: int) -> Bound:
    """The importance-weighted bound."""
    return Bound.of_samples(*log_weights(vae, x, keys, num_samples))


def reconstruct(vae: GridVAE, x: jax.Array) -> jax.Array:
    """Pixel means [B, H, W, C] at the mean of q(z | x)."""
    return jax.nn.sigmoid(vae.decode(vae.encode(x).mean, x.shape[1:3]))


def sample_prior(vae: GridVAE, keys: chex.PRNGKey, canvas: tuple[int, int]) -> jax.Array:
    """Pixel means [B, H, W, C] of images from the prior, one for each key [B]."""
    shape = (*(-(-side // vae.cell) for side in canvas), vae.latents)
    z = jax.vmap(lambda key: jax.random.normal(key, shape))(keys)
    return jax.nn.sigmoid(vae.decode(z, canvas))


def kl(vae: GridVAE, x: jax.Array) -> jax.Array:
    """KL(q(z | x) || p(z)) of each position of the grid, [B, h, w]."""
    return gaussian.kl_to_standard(vae.encode(x)).sum(-1)


def kl_map(kl: jax.Array, cell: int, canvas: tuple[int, int]) -> jax.Array:
    """The grid's KL [B, h, w] brought to the image's size by bilinear interpolation.

    Cell (i, j) stays over the pixels that it stands for, cell·i to cell·(i + 1) - 1.
    """
    b, h, w = kl.shape
    enlarged = jax.image.resize(kl, (b, cell * h, cell * w), "bilinear")
    return enlarged[:, : canvas[0], : canvas[1]]
