"""Fully convolutional VAEs whose latents form a grid (App. B).

The auxiliary one, trained beside LAVAE or before it, tells the location network during
warm-up where there is something to see; the baseline is what LAVAE is compared with.
"""

import dataclasses
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from lavae_jax import bernoulli, gaussian, model
from lavae_jax.model import Variables
from lavae_jax.networks import (
    AUXILIARY_STRIDES,
    BASELINE_DOWN,
    AuxiliaryDecoder,
    AuxiliaryEncoder,
    BaselineDecoder,
    BaselineEncoder,
    pad_to_multiple,
)


@dataclasses.dataclass(frozen=True)
class AuxiliaryConfig:
    """Latents 11 x 11 x 8 for 64 x 64 pixels.

    space_to_depth: 2 or 6 do without the layers at full, or at full and half, resolution.
    """

    channels: int = 1
    width: int = 48
    latents: int = 8
    space_to_depth: int = 1
    cell = 6  # pixels a latent, in each direction

    def __post_init__(self):
        if self.space_to_depth not in AUXILIARY_STRIDES:
            raise ValueError(f"auxiliary space_to_depth={self.space_to_depth} must be 1, 2 or 6")

    def encoder(self, axis_name: str | None = None) -> nn.Module:
        return AuxiliaryEncoder(self.width, self.latents, self.space_to_depth, axis_name)

    def decoder(self, axis_name: str | None = None) -> nn.Module:
        return AuxiliaryDecoder(self.width, self.channels, self.space_to_depth, axis_name)


@dataclasses.dataclass(frozen=True)
class BaselineConfig:
    """Latents 8 x 8 x 16 = 1024 for 64 x 64 pixels; about a million parameters.

    space_to_depth: 8 does without the layers at any resolution but the latents'.
    """

    channels: int = 1
    width: int = 64
    latents: int = 16
    space_to_depth: int = 1
    cell = 8

    def __post_init__(self):
        if self.space_to_depth not in BASELINE_DOWN:
            raise ValueError(f"baseline space_to_depth={self.space_to_depth} must be 1 or 8")

    def encoder(self, axis_name: str | None = None) -> nn.Module:
        return BaselineEncoder(self.width, self.latents, self.space_to_depth, axis_name)

    def decoder(self, axis_name: str | None = None) -> nn.Module:
        return BaselineDecoder(self.width, self.channels, self.space_to_depth, axis_name)


VaeConfig = AuxiliaryConfig | BaselineConfig


class Terms(NamedTuple):
    log_likelihood: jax.Array  # [B]
    kl: jax.Array  # [B, h, w]: of each position of the grid

    def elbo(self, beta: jax.Array | float = 1.0) -> jax.Array:
        return self.log_likelihood - beta * self.kl.sum((1, 2))


def init(config: VaeConfig, key: chex.PRNGKey) -> Variables:
    networks = {
        "encoder": (config.encoder(), jnp.zeros((1, 24, 24, config.channels))),
        "decoder": (config.decoder(), jnp.zeros((1, 2, 2, config.latents))),
    }
    return model.init_networks(networks, key)


def elbo(
    config: VaeConfig,
    variables: Variables,
    x: jax.Array,
    keys: chex.PRNGKey,
    *,
    train: bool = False,
    axis_name: str | None = None,
) -> tuple[Terms, Variables]:
    """A single-sample estimate of the ELBO's parts for images [B, H, W, C].

    Each image has a key of its own, keys [B].
    """
    mode = {"train": train, "axis_name": axis_name}
    q, variables = _encode(config, variables, x, **mode)
    draw = jax.vmap(lambda key: jax.random.normal(key, q.mean.shape[1:], q.mean.dtype))
    noise = draw(keys)
    z = gaussian.sample(q, noise)
    logits, variables = _decode(config, variables, z, x.shape[1:3], **mode)
    log_likelihood = bernoulli.sum_pixels(bernoulli.log_prob_from_logits(x, logits))
    return Terms(log_likelihood, gaussian.kl_to_standard(q).sum(-1)), variables


def log_weights(
    config: VaeConfig, variables: Variables, x: jax.Array, keys: chex.PRNGKey, num_samples: int
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """log p(x, z) - log q(z | x) of samples z ~ q(z | x), and its two parts, [K, B] each."""
    q, _ = _encode(config, variables, x)
    shape = (num_samples, *q.mean.shape[1:])
    draw = jax.vmap(lambda key: jax.random.normal(key, shape, q.mean.dtype), out_axes=1)
    noise = draw(keys)
    z = gaussian.sample(q, noise).reshape(-1, *q.mean.shape[1:])
    logits, _ = _decode(config, variables, z, x.shape[1:3])
    logits = logits.reshape(num_samples, *x.shape)
    log_likelihood = bernoulli.sum_pixels(bernoulli.log_prob_from_logits(x, logits))
    kl = gaussian.log_ratio_to_standard(q, noise).sum((2, 3, 4))
    return log_likelihood - kl, {"log_likelihood": log_likelihood, "kl": kl}


def reconstruct(config: VaeConfig, variables: Variables, x: jax.Array) -> jax.Array:
    """Pixel means [B, H, W, C] at the mean of q(z | x)."""
    q, _ = _encode(config, variables, x)
    return jax.nn.sigmoid(_decode(config, variables, q.mean, x.shape[1:3])[0])


def sample_prior(
    config: VaeConfig,
    variables: Variables,
    key: chex.PRNGKey,
    num_images: int,
    canvas: tuple[int, int],
) -> jax.Array:
    """Pixel means [B, H, W, C] of images from the prior."""
    grid = [-(-side // config.cell) for side in canvas]
    z = jax.random.normal(key, (num_images, *grid, config.latents))
    return jax.nn.sigmoid(_decode(config, variables, z, canvas)[0])


def kl(config: VaeConfig, variables: Variables, x: jax.Array) -> jax.Array:
    """KL(q(z | x) || p(z)) of each position of the grid, [B, h, w]."""
    q, _ = _encode(config, variables, x)
    return gaussian.kl_to_standard(q).sum(-1)


def kl_map(kl: jax.Array, cell: int, canvas: tuple[int, int]) -> jax.Array:
    """The grid's KL [B, h, w] brought to the image's size by bilinear interpolation.

    Cell (i, j) stays over the pixels that it stands for, cell·i to cell·(i + 1) - 1.
    """
    b, h, w = kl.shape
    enlarged = jax.image.resize(kl, (b, cell * h, cell * w), "bilinear")
    return enlarged[:, : canvas[0], : canvas[1]]


def _encode(config, variables, x, *, train=False, axis_name=None):
    padded = pad_to_multiple(x, config.cell)
    features, variables = model.apply(
        config.encoder(axis_name), "encoder", variables, padded, train=train
    )
    return gaussian.from_features(features), variables


def _decode(config, variables, z, canvas, *, train=False, axis_name=None):
    logits, variables = model.apply(config.decoder(axis_name), "decoder", variables, z, train=train)
    return logits[:, : canvas[0], : canvas[1]], variables
