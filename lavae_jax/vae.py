"""Fully convolutional VAEs whose latents form a grid (App. B).

The auxiliary one, trained beside LAVAE or before it, tells the location network during
warm-up where there is something to see; the baseline is what LAVAE is compared with.
Both are one module with a table of stages each; the baseline can have the networks of
`attention` instead. The functions take a bound module.
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

from lavae_jax import attention, bernoulli, gaussian, model
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


class Architecture(NamedTuple):
    """cell: pixels a latent, in each direction. stages: by the stem's space-to-depth factor.
    coarse: for a stem as large as a cell, of any size, which does without the layers at any
    resolution but the latents'."""

    cell: int
    stages: dict[int, Stages]
    coarse: Stages


ARCHITECTURES = {
    # Latents 11 x 11 x 8 for 64 x 64 pixels.
    "auxiliary": Architecture(
        6,
        {
            1: Stages(
                (_residual, _down(2), _residual, _down(3), _residual),
                (_residual, _repeat(3), _layer, _residual, _repeat(2), _layer, _residual),
            ),
            2: Stages((_residual, _down(3), _residual), (_residual, _repeat(3), _layer, _residual)),
        },
        Stages((_residual,), (_residual,)),
    ),
    # Latents 8 x 8 x 16 = 1024 for 64 x 64 pixels; about a million parameters.
    "baseline": Architecture(
        8,
        {
            1: Stages(
                (_down(2, 4), _residual, _plain_down, _residual, _plain_down, _residual, _residual),
                (
                    *(_layer, _residual, _residual, _plain_up, _residual, _plain_up, _residual),
                    *(_bilinear, _layer),
                ),
            ),
        },
        Stages((_residual,) * 3, (_layer, _residual, _residual, _residual, _layer)),
    ),
}


# --- the module --------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridVAESettings:
    """architecture: tables of stages, or `attentive`, which has a kernel (the side of what a
    latent sees and draws, in pixels, odd) and no stem."""

    architecture: Literal["auxiliary", "baseline", "attentive"]
    channels: int
    width: int
    latents: int
    space_to_depth: int
    cell: int = 0  # pixels a latent, in each direction; 0 for the architecture's own
    kernel: int = 0
    activations: Literal["float32", "bfloat16"] = "float32"  # as in LavaeSettings
    packed_pixels: Literal[1, 2] = 1

    def __post_init__(self):
        check_choices("VAE", self)
        if self.is_attentive:
            cell = self.cell or ARCHITECTURES["baseline"].cell
            object.__setattr__(self, "cell", cell)
            if self.space_to_depth != 1 or self.kernel <= 2 * cell or self.kernel % 2 == 0:
                raise ValueError(
                    f"attentive space_to_depth={self.space_to_depth} must be 1, and "
                    f"kernel={self.kernel} odd and more than {2 * cell}, which is two cells"
                )
            return
        if self.kernel:
            raise ValueError(f"{self.architecture} kernel={self.kernel}: only attentive has one")
        usual, stages, _ = ARCHITECTURES[self.architecture]
        object.__setattr__(self, "cell", self.cell or usual)
        factors = [*stages, self.cell] if self.cell == usual else [self.cell]
        if self.space_to_depth not in factors:
            wanted = " or ".join(map(str, factors))
            raise ValueError(
                f"{self.architecture} space_to_depth={self.space_to_depth} must be {wanted}"
            )

    @property
    def is_attentive(self) -> bool:
        return self.architecture == "attentive"

    @property
    def stages(self) -> Stages:
        _, stages, coarse = ARCHITECTURES[self.architecture]
        return coarse if self.space_to_depth == self.cell else stages[self.space_to_depth]


def baseline_settings(model: Mapping[str, Any]) -> GridVAESettings:
    """From the `model` of a baseline's config."""
    return from_config(GridVAESettings, {"architecture": "baseline", **model})


class Stack(nn.Module):
    """Stages, and a convolution that gives the number of features asked for."""

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
    settings: GridVAESettings
    train: bool = False
    axis_name: str | None = None

    def setup(self):
        settings = self.settings
        if settings.is_attentive:
            sizes = settings.cell, settings.kernel, settings.width
            self.encoder = attention.Encoder(*sizes, 2 * settings.latents)
            self.decoder = attention.Decoder(*sizes, settings.channels)
            return
        how = settings.activations, settings.packed_pixels
        execution = Execution.of(self.train, self.axis_name, *how)
        pixels = settings.channels * settings.space_to_depth**2
        stages, width = settings.stages, settings.width
        self.encoder = Stack(stages.encoder, width, 2 * settings.latents, execution)
        self.decoder = Stack(stages.decoder, width, pixels, execution)

    def __call__(self) -> None:
        """Both networks on the least input; Flax initialises what is called."""
        canvas = (self.settings.cell, self.settings.cell)
        q = self.encode(jnp.zeros((1, *canvas, self.settings.channels)))
        self.decode(q.mean, canvas)

    def encode(self, x: jax.Array) -> Gaussian:
        """q(z | x), a grid [B, h, w, latents]."""
        padded = pad_to_multiple(x, self.settings.cell)
        features = self.encoder(space_to_depth(padded, self.settings.space_to_depth))
        return gaussian.from_features(features)

    def decode(self, z: jax.Array, canvas: tuple[int, int]) -> jax.Array:
        """Pixel logits [B, H, W, C]."""
        logits = depth_to_space(self.decoder(z), self.settings.space_to_depth)
        return logits[:, : canvas[0], : canvas[1]]


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
    """A square of each image [B, H, W, C] with a lit pixel of it somewhere inside; any square
    of an image that is black. Without it, most of what is computed is about black pixels.
    No larger than the image."""
    height, width, channels = x.shape[1:]
    side = min(side, height, width)

    def one(image, key):
        pixel_key, place_key = jax.random.split(key)
        lit = image.sum(-1).reshape(-1)
        pixel = jax.random.categorical(pixel_key, jnp.log(lit + 1e-9))
        place = jax.random.randint(place_key, (2,), 0, side)
        row = jnp.clip(pixel // width - place[0], 0, height - side)
        column = jnp.clip(pixel % width - place[1], 0, width - side)
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
    # On a CPU, sprites of all samples are more than its cache holds, but convolutions are slow in
    # a loop.
    return lax.map(one, z) if vae.settings.is_attentive else jax.vmap(one)(z)


def bound(vae: GridVAE, x: jax.Array, keys: chex.PRNGKey, num_samples: int) -> Bound:
    """The importance-weighted bound."""
    return Bound.of_samples(*log_weights(vae, x, keys, num_samples))


def reconstruct(vae: GridVAE, x: jax.Array) -> jax.Array:
    """Pixel means [B, H, W, C] at the mean of q(z | x)."""
    return jax.nn.sigmoid(vae.decode(vae.encode(x).mean, x.shape[1:3]))


def sample_prior(vae: GridVAE, keys: chex.PRNGKey, canvas: tuple[int, int]) -> jax.Array:
    """Pixel means [B, H, W, C] of images from the prior, one for each key [B]."""
    shape = (*(-(-side // vae.settings.cell) for side in canvas), vae.settings.latents)
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
