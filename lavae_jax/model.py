"""LAVAE as one Flax module: its networks, p(n) and p(z_app).

The module computes features. The probability is functions of it: `inference`,
`generative` and `objective` take a bound module and read as the paper does,

    bind(objective.elbo, LAVAE(settings))(variables, x, keys)
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from lavae_jax import prior
from lavae_jax.networks import AppearanceNet, Execution, LocationNet, SpriteDecoder
from lavae_jax.settings import LavaeSettings

Variables = Mapping[str, Any]  # Flax's: "params", and "batch_stats" where there are any


class LAVAE(nn.Module):
    """The location network, the appearance network, the sprite decoder, p(n) and p(z_app).

    train: the networks that are being trained: their batch normalisation uses the batch's
        statistics, over the devices of `axis_name`, and updates the running ones.
    """

    settings: LavaeSettings
    train: tuple[str, ...] = ()
    axis_name: str | None = None

    NETWORKS = ("location", "appearance", "decoder")

    def setup(self):
        settings = self.settings
        self.location = LocationNet(settings.location, self._execution("location"))
        self.appearance = AppearanceNet(
            settings.appearance, 2 * settings.latent_size, self._execution("appearance")
        )
        self.decoder = SpriteDecoder(
            settings.decoder,
            settings.sprite_size,
            settings.channels,
            self._execution("decoder").plain(),  # sprites are an odd number of pixels wide
        )
        # p(n) = softmax(count_logits).
        shape = (settings.max_objects + 1,)
        self.count_logits = self.param("count_logits", nn.initializers.zeros, shape)
        # p(z_app): a mixture, or None for N(0, I), which has no parameters.
        sizes = settings.prior.components, settings.latent_size
        is_mixture = settings.prior.kind == "mixture"
        self.prior = self.param("prior", prior.standard, *sizes) if is_mixture else None

    def _execution(self, network: str) -> Execution:
        settings = self.settings
        how = settings.activations, settings.packed_pixels
        return Execution.of(network in self.train, self.axis_name, *how)

    def __call__(self) -> None:
        """Every network on the least input; Flax initialises what is called."""
        settings = self.settings
        window = 2 * self.appearance.radius + 1
        self.location(jnp.zeros((1, 16, 16, settings.channels)))
        self.appearance(jnp.zeros((1, window, window, settings.channels)))
        self.decoder(jnp.zeros((1, settings.latent_size)))


def initialise(module: nn.Module, key: chex.PRNGKey) -> Variables:
    """Random networks, a uniform p(n), and N(0, I) for p(z_app)."""
    return {"batch_stats": {}, **jax.jit(module.init)(key)}


def get_part(params: Mapping[str, Any], part: str) -> Any:
    """The parameters of a part such as lavae.location."""
    for name in part.split("."):
        params = params[name]
    return params


def with_part(params: Mapping[str, Any], part: str, value: Any) -> dict[str, Any]:
    """Parameters with those of a part replaced."""
    name, _, rest = part.partition(".")
    return {**params, name: with_part(params[name], rest, value) if rest else value}


def bind(function: Callable, module: nn.Module) -> Callable:
    """function(bound module, ...) as a pure function of (variables, ...)."""
    return nn.apply(function, module)


@functools.cache
def compiled(function: Callable, module: nn.Module) -> Callable:
    """As `bind`, compiled once for each function and module."""
    return jax.jit(bind(function, module))


def bind_training(function: Callable, module: nn.Module) -> Callable:
    """As `bind`; returns the new batch statistics, too."""

    def apply(variables: Variables, *args, **kwargs):
        out, updated = nn.apply(function, module, mutable=["batch_stats"])(
            variables, *args, **kwargs
        )
        return out, updated.get("batch_stats", {})

    return apply
