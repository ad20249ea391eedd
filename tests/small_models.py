"""Small networks for tests. Compiling random numbers takes longer than most tests, so
networks are initialised once and randomised by numpy."""

import functools
import importlib

import jax
import numpy as np

from lavae_jax import model
from lavae_jax.model import LAVAE
from lavae_jax.settings import LavaeSettings, from_config
from lavae_jax.vae import AuxiliarySettings, BaselineSettings, GlimpseSettings, baseline_settings


def get_config(name, recipe="described"):
    return importlib.import_module(f"configs.{name}").get_config(recipe)


def paper(name="mnist1k", **changes) -> LavaeSettings:
    return from_config(LavaeSettings, {**get_config(name).model, **changes})


def auxiliary(width=48, latents=8, space_to_depth=1, cell=6) -> AuxiliarySettings:
    return AuxiliarySettings(
        channels=1,
        width=width,
        latents=latents,
        space_to_depth=space_to_depth,
        cell=cell,
    )


def baseline(channels=1, width=64, latents=16, space_to_depth=1) -> BaselineSettings:
    sizes = {"width": width, "latents": latents, "space_to_depth": space_to_depth}
    return baseline_settings({"channels": channels, **sizes})


def glimpse(width=4, latents=2, kernel=17) -> GlimpseSettings:
    sizes = {"width": width, "latents": latents, "kernel": kernel}
    return baseline_settings({"architecture": "glimpse", "channels": 1, **sizes})


def small(network="residual", computed_on="map", space_to_depth=1, **changes) -> LavaeSettings:
    return paper(
        max_objects=4,
        latent_size=3,
        sprite_size=5,
        location={"width": 4, "blocks": 2, "head_width": 4, "space_to_depth": space_to_depth},
        appearance={
            "network": network,
            "computed_on": computed_on,
            **{"width": 4, "blocks": 2, "window": 7, "hidden": (6, 5)},
        },
        decoder={
            "network": "residual",
            **{"width": 4, "blocks": 2, "seed_size": 3, "seed_channels": 2},
        },
        **changes,
    )


def module_of(settings, train=(), axis_name=None):
    if isinstance(settings, LavaeSettings):
        return LAVAE(settings, train, axis_name)
    return settings.build(bool(train), axis_name)


@functools.cache
def initialised(settings) -> model.Variables:
    """Every variable is random and none is 0, so that all of them count."""
    shapes = jax.eval_shape(lambda: model.initialise(module_of(settings), jax.random.key(0)))
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        if name.endswith("['kernel']"):
            fan_in = np.prod(leaf.shape[:-1])
            return rng.normal(0, fan_in**-0.5, leaf.shape).astype(leaf.dtype)
        around = 1.0 if name.endswith(("['scale']", "['var']")) else 0.0
        return (around + rng.uniform(0.05, 0.3, leaf.shape)).astype(leaf.dtype)

    return {
        name: jax.tree_util.tree_map_with_path(draw, shapes[name])
        for name in ("params", "batch_stats")
    }


@functools.cache
def compiled(function, settings, train=(), static=()):
    """`function(module, ...)` as a function of (variables, ...), compiled as a whole.

    In training, it returns the new batch statistics, too.
    """
    bind = model.bind_training if train else model.bind
    return jax.jit(bind(function, module_of(settings, train)), static_argnames=static)
