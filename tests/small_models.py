"""Small networks for tests. Compiling random numbers takes longer than most tests, so
networks are initialised once and randomised by numpy."""

import functools

import jax
import numpy as np

from lavae_jax import model, vae
from lavae_jax.model import ModelConfig
from lavae_jax.networks import AppearanceConfig, DecoderConfig, LocationConfig


def small(kind="residual", form="map", space_to_depth=1) -> ModelConfig:
    return ModelConfig(
        max_objects=4,
        latent_size=3,
        sprite_size=5,
        location=LocationConfig(width=4, blocks=2, head_width=4, space_to_depth=space_to_depth),
        appearance=AppearanceConfig(
            kind, form, width=4, blocks=2, space_to_depth=space_to_depth, window=7, hidden=(6, 5)
        ),
        decoder=DecoderConfig(width=4, blocks=2, seed_size=3, seed_channels=2),
    )


@functools.cache
def initialised(config) -> model.Variables:
    """Every variable is random and none is 0, so that all of them count."""
    init = model.init if isinstance(config, ModelConfig) else vae.init
    shapes = jax.eval_shape(lambda: init(config, jax.random.key(0)))
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        if name.endswith("['kernel']"):
            fan_in = np.prod(leaf.shape[:-1])
            return rng.normal(0, fan_in**-0.5, leaf.shape).astype(leaf.dtype)
        around = 1.0 if name.endswith(("['scale']", "['var']")) else 0.0
        return (around + rng.uniform(0.05, 0.3, leaf.shape)).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def compiled(function, **kwargs):
    """`function(config, ...)`, compiled as a whole."""
    return jax.jit(function, static_argnums=0, static_argnames="train", **kwargs)
