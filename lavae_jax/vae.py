"""Fully convolutional VAEs whose latents form a grid (App. B).

During warm-up, the location network learns from the auxiliary VAE where the objects are. LAVAE is
compared with the baseline, which has the paper's networks or those of `glimpse`. The settings of
each architecture build a `GridVAE`, and the functions below take a bound one.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
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
    """The layers of a VAE, as functions of (execution, width).

    Attributes:
        encoder: stages of the encoder.
        decoder: stages of the decoder.
    """

    encoder: tuple[Callable, ...]
    decoder: tuple[Callable, ...]


# Keys are the stem's space-to-depth factors. If the factor equals the cell, all layers have the
# resolution of the latents. The auxiliary VAE has 11 x 11 x 8 latents for 64 x 64 pixels.
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
    """Stages, and a convolution that returns the requested number of features.

    Attributes:
        stages: functions (execution, width) -> layer.
        width: the number of channels of the stages.
        outputs: the number of channels of the last convolution.
        execution: how the layers are computed.
    """

    stages: tuple[Callable, ...]
    width: int
    outputs: int
    execution: Execution

    @nn.compact
    def __call__(self, x):
        """Applies the stack.

        Args:
            x: [B, H, W, C].

        Returns:
            [B, H', W', outputs].
        """
        for stage in self.stages:
            x = stage(self.execution, self.width)(x)
        return Conv(self.execution.exact(), self.outputs)(x)


class GridVAE(nn.Module):
    """A VAE with a grid of latents, built by its settings.

    Attributes:
        encoder: [B, H / f, W / f, f² C] -> [B, h, w, 2 latents].
        decoder: [B, h, w, latents] -> [B, H / f, W / f, f² C].
        channels: C.
        latents: the number of latents at each position of the grid.
        cell: the side of the square that a position of the grid covers, in pixels.
        space_to_depth: f.
        decode_in_turn: whether samples are decoded one after another. On a CPU, this is faster for
            `glimpse`, since the sprites of all samples together exceed the cache, but slower for
            the other networks, since convolutions are slow in a loop.
    """

    encoder: nn.Module
    decoder: nn.Module
    channels: int
    latents: int
    cell: int
    space_to_depth: int = 1
    decode_in_turn: bool = False

    def __call__(self) -> None:
        """Runs both networks on a small input, since Flax initialises what is called."""
        canvas = (self.cell, self.cell)
        q = self.encode(jnp.zeros((1, *canvas, self.channels)))
        self.decode(q.mean, canvas)

    def encode(self, x: jax.Array) -> Gaussian:
        """Infers q(z | x).

        Args:
            x: images, [B, H, W, C].

        Returns:
            The Gaussian, [B, h, w, latents].
        """
        padded = pad_to_multiple(x, self.cell)
        return gaussian.from_features(self.encoder(space_to_depth(padded, self.space_to_depth)))

    def decode(self, z: jax.Array, canvas: Sequence[int]) -> jax.Array:
        """Decodes latents into pixel logits.

        Args:
            z: [B, h, w, latents].
            canvas: height and width, H and W.

        Returns:
            Pixel logits, [B, H, W, C].
        """
        logits = depth_to_space(self.decoder(z), self.space_to_depth)
        return logits[:, : canvas[0], : canvas[1]]


# --- architectures -----------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuxiliarySettings:
    """The auxiliary VAE of the warm-up.

    Attributes:
        channels: C, of the images.
        width: channels of the layers.
        latents: the number of latents at each position of the grid.
        space_to_depth: f, the side of the cells that the stem moves into channels.
        cell: the side of the square that a position of the grid covers, in pixels.
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
        """Creates the module.

        Args:
            train: whether it is being trained.
            axis_name: the device axis over which batch statistics are taken; None for one device.

        Returns:
            The unbound VAE.
        """
        is_coarse = self.space_to_depth == self.cell
        stages = _COARSE_AUXILIARY if is_coarse else _AUXILIARY[self.space_to_depth]
        return _stacked(self, stages, self.cell, train, axis_name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineSettings:
    """The paper's baseline.

    Attributes:
        channels, width, latents, space_to_depth: as in `AuxiliarySettings`.
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
        """Creates the module.

        Args:
            train: whether it is being trained.
            axis_name: the device axis over which batch statistics are taken; None for one device.

        Returns:
            The unbound VAE.
        """
        return _stacked(self, _BASELINE[self.space_to_depth], BASELINE_CELL, train, axis_name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlimpseSettings:
    """The baseline with the networks of `glimpse`.

    Attributes:
        channels, width, latents: as in `AuxiliarySettings`.
        kernel: the side of the window that a position of the grid sees and draws, in pixels; odd.
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
        """Creates the module.

        Args:
            train: ignored, as there is no batch normalisation.
            axis_name: ignored.

        Returns:
            The unbound VAE.
        """
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


BASELINE_CELL = 8  # pixels: the side of the square that a position of the baseline's grid covers
BASELINES = {"baseline": BaselineSettings, "glimpse": GlimpseSettings}


def baseline_settings(model: Mapping[str, Any]) -> BaselineSettings | GlimpseSettings:
    """Reads the settings of a baseline.

    Args:
        model: the `model` part of a baseline's config.

    Returns:
        The settings of its architecture.

    Raises:
        ValueError: if the architecture is unknown or a setting is invalid.
    """
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
    """The terms of the ELBO for each image.

    Attributes:
        log_likelihood: log p(x | z), [B].
        kl: KL(q(z | x) || p(z)), or its estimate from the sample, [B].
    """

    log_likelihood: jax.Array
    kl: jax.Array

    @property
    def elbo(self) -> jax.Array:
        """The ELBO of each image, [B]."""
        return self.weighted_elbo(1.0)

    def weighted_elbo(self, beta: jax.Array | float) -> jax.Array:
        """Computes the objective of the β-VAE.

        Args:
            beta: the weight of the KL, β.

        Returns:
            log p(x | z) - β KL, [B].
        """
        return self.log_likelihood - beta * self.kl


class Elbo(NamedTuple):
    """A single-sample estimate of the ELBO.

    Attributes:
        terms: the terms of the ELBO.
        kl: KL(q(z | x) || p(z)) of each position of the grid, [B, h, w].
    """

    terms: Terms
    kl: jax.Array


def elbo(vae: GridVAE, x: jax.Array, keys: chex.PRNGKey) -> Elbo:
    """Estimates the ELBO of each image from a single sample.

    Args:
        vae: bound VAE.
        x: images, [B, H, W, C].
        keys: random keys, [B].

    Returns:
        The estimate.
    """
    q = vae.encode(x)
    noise = jax.vmap(lambda key: jax.random.normal(key, q.mean.shape[1:], q.mean.dtype))(keys)
    kl = gaussian.kl_to_standard(q).sum(-1)
    return Elbo(Terms(log_likelihood(vae, x, gaussian.sample(q, noise)), kl.sum((1, 2))), kl)


def log_likelihood(vae: GridVAE, x: jax.Array, z: jax.Array) -> jax.Array:
    """Computes log p(x | z).

    Args:
        vae: bound VAE.
        x: images, [B, H, W, C].
        z: latents, [B, h, w, latents].

    Returns:
        Log likelihoods, [B].
    """
    logits = vae.decode(z, x.shape[1:3])
    return bernoulli.sum_pixels(bernoulli.log_prob_from_logits(x, logits))


def crop(x: jax.Array, keys: chex.PRNGKey, side: int) -> jax.Array:
    """Crops a random square that contains a foreground pixel, if the image has one.

    Most squares of an image contain none, and little can be learned from these.

    Args:
        x: images, [B, H, W, C].
        keys: random keys, [B].
        side: the side of the square, in pixels; it is limited to that of the image.

    Returns:
        Squares, [B, side, side, C].
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
    """Computes importance weights of samples z ~ q(z | x).

    Args:
        vae: bound VAE.
        x: images, [B, H, W, C].
        keys: random keys, [B].
        num_samples: K, samples for each image.

    Returns:
        log p(x, z) - log q(z | x), [K, B], and the terms of the ELBO, [K, B] each.
    """
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
    """Computes the importance-weighted bound on log p(x).

    Args:
        vae: bound VAE.
        x: images, [B, H, W, C].
        keys: random keys, [B].
        num_samples: K, importance samples for each image.

    Returns:
        The bound.
    """
    return Bound.of_samples(*log_weights(vae, x, keys, num_samples))


def reconstruct(vae: GridVAE, x: jax.Array) -> jax.Array:
    """Decodes the mean of q(z | x).

    Args:
        vae: bound VAE.
        x: images, [B, H, W, C].

    Returns:
        Pixel means, [B, H, W, C].
    """
    return jax.nn.sigmoid(vae.decode(vae.encode(x).mean, x.shape[1:3]))


def sample_prior(vae: GridVAE, keys: chex.PRNGKey, canvas: tuple[int, int]) -> jax.Array:
    """Samples images from the prior.

    Args:
        vae: bound VAE.
        keys: random keys, one for each image, [B].
        canvas: height and width, H and W.

    Returns:
        Pixel means, [B, H, W, C].
    """
    shape = (*(-(-side // vae.cell) for side in canvas), vae.latents)
    z = jax.vmap(lambda key: jax.random.normal(key, shape))(keys)
    return jax.nn.sigmoid(vae.decode(z, canvas))


def kl(vae: GridVAE, x: jax.Array) -> jax.Array:
    """Computes KL(q(z | x) || p(z)) of each position of the grid.

    Args:
        vae: bound VAE.
        x: images, [B, H, W, C].

    Returns:
        The KL, [B, h, w].
    """
    return gaussian.kl_to_standard(vae.encode(x)).sum(-1)


def kl_map(kl: jax.Array, cell: int, canvas: tuple[int, int]) -> jax.Array:
    """Enlarges the grid's KL to the size of the image, by bilinear interpolation.

    Position (i, j) stays over its own pixels: rows cell · i to cell · (i + 1) - 1, and columns
    likewise.

    Args:
        kl: [B, h, w].
        cell: the side of the square that a position of the grid covers, in pixels.
        canvas: height and width, H and W.

    Returns:
        The KL map, [B, H, W].
    """
    b, h, w = kl.shape
    enlarged = jax.image.resize(kl, (b, cell * h, cell * w), "bilinear")
    return enlarged[:, : canvas[0], : canvas[1]]
