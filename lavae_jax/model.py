"""LAVAE as one Flax module: its networks, p(n) and p(z_app).

The module computes features. The probabilities are functions of a bound module, in `inference`,
`generative` and `objective`, which read as the paper does:

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

Variables = Mapping[str, Any]  # Flax's: "params", and "batch_stats" if any


class LAVAE(nn.Module):
    """The location network, the appearance network, the sprite decoder, p(n) and p(z_app).

    Attributes:
        settings: the architecture and constants of the model.
        train: the networks that are in training mode, from `NETWORKS`. Their batch normalisation
            uses the statistics of the batch and updates the running ones.
        axis_name: the device axis over which batch statistics are taken; None for one device.
    """

    settings: LavaeSettings
    train: tuple[str, ...] = ()
    axis_name: str | None = None

    NETWORKS = ("location", "appearance", "decoder")

    def setup(self) -> None:
        """Creates the networks and the parameters of p(n) and p(z_app)."""
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
        self.prior: Any = self.param("prior", prior.standard, *sizes) if is_mixture else None

    def _execution(self, network: str) -> Execution:
        settings = self.settings
        how = settings.activations, settings.packed_pixels
        return Execution.of(network in self.train, self.axis_name, *how)

    def __call__(self) -> None:
        """Runs every network on a small input, since Flax initialises what is called."""
        settings = self.settings
        window = 2 * self.appearance.radius + 1
        self.location(jnp.zeros((1, 16, 16, settings.channels)))
        self.appearance(jnp.zeros((1, window, window, settings.channels)))
        self.decoder(jnp.zeros((1, settings.latent_size)))


def initialise(module: nn.Module, key: chex.PRNGKey) -> Variables:
    """Initialises a module: networks at random, p(n) as uniform, and p(z_app) as N(0, I).

    Args:
        module: a module that can be called without arguments, such as `LAVAE`.
        key: the random key of the parameters.

    Returns:
        The module's variables, "params" and "batch_stats" (which may be empty).
    """
    return {"batch_stats": {}, **jax.jit(module.init)(key)}


def get_part(params: Mapping[str, Any], part: str) -> Any:
    """Returns the parameters of a part of a module.

    Args:
        params: nested parameters.
        part: the dotted path of the part, such as "lavae.location".

    Returns:
        The parameters under that path.
    """
    for name in part.split("."):
        params = params[name]
    return params


def with_part(params: Mapping[str, Any], part: str, value: Any) -> dict[str, Any]:
    """Replaces the parameters of a part of a module.

    Args:
        params: nested parameters; they are not modified.
        part: the dotted path of the part, such as "lavae.location".
        value: the new parameters of the part.

    Returns:
        A copy of `params` with `value` under that path.
    """
    name, _, rest = part.partition(".")
    return {**params, name: with_part(params[name], rest, value) if rest else value}


def bind(function: Callable, module: nn.Module) -> Callable:
    """Turns a function of a bound module into a pure function of its variables.

    Args:
        function: called as `function(bound_module, *args, **kwargs)`.
        module: the unbound module.

    Returns:
        The function `(variables, *args, **kwargs) -> function(bound_module, *args, **kwargs)`.
    """
    return nn.apply(function, module)


@functools.cache
def compiled(function: Callable, module: nn.Module) -> Callable:
    """Compiles the result of `bind`, once for each function and module.

    Args:
        function: called as `function(bound_module, *args, **kwargs)`.
        module: the unbound module.

    Returns:
        The compiled function of `(variables, *args, **kwargs)`.
    """
    return jax.jit(bind(function, module))


def bind_training(function: Callable, module: nn.Module) -> Callable:
    """Does the same as `bind`, but also returns the new batch statistics.

    Args:
        function: called as `function(bound_module, *args, **kwargs)`.
        module: the unbound module.

    Returns:
        The function `(variables, *args, **kwargs) -> (result, batch_stats)`.
    """

    def apply(variables: Variables, *args, **kwargs):
        out, updated = nn.apply(function, module, mutable=["batch_stats"])(
            variables, *args, **kwargs
        )
        return out, updated.get("batch_stats", {})

    return apply
