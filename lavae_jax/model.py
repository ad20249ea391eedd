"""What a LAVAE is made of: its settings, its networks and their variables."""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from lavae_jax import counting
from lavae_jax.networks import (
    AppearanceConfig,
    AppearanceNet,
    DecoderConfig,
    LocationConfig,
    LocationNet,
    SpriteDecoder,
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The defaults are the paper's for multi-MNIST (App. B).

    Attributes:
        channels: C, of the images.
        sprite_size: height and width of a sprite.
        max_objects: M.
        latent_size: L.
        gamma: γ on a 64x64 canvas.
        threshold: objects are peaks of h_loc above `threshold` times γ.
        peak_radius: a peak is the highest of the (2 radius + 1)² pixels around it.
        support: where q(z_loc) samples: all `pixels`, as in the paper, or the `peaks` that
            f_count counts. The latter never draws one object twice from two pixels.
    """

    channels: int = 1
    sprite_size: int = 17
    max_objects: int = 10
    latent_size: int = 32
    gamma: float = 4.0
    threshold: float = 4.0
    peak_radius: int = 3
    support: Literal["pixels", "peaks"] = "pixels"
    location: LocationConfig = LocationConfig()
    appearance: AppearanceConfig = AppearanceConfig()
    decoder: DecoderConfig = DecoderConfig()

    def __post_init__(self):
        if self.support not in ("pixels", "peaks"):
            raise ValueError(f"support={self.support!r}: there are 'pixels', 'peaks'")

    def gamma_for(self, canvas: tuple[int, int]) -> float:
        return counting.scale_with_canvas(self.gamma, canvas[0] * canvas[1])

    def location_net(self, axis_name: str | None = None) -> LocationNet:
        return LocationNet(self.location, axis_name)

    def appearance_net(self, axis_name: str | None = None) -> AppearanceNet:
        return AppearanceNet(self.appearance, 2 * self.latent_size, axis_name)

    def sprite_decoder(self, axis_name: str | None = None) -> SpriteDecoder:
        return SpriteDecoder(self.decoder, self.sprite_size, self.channels, axis_name)


class Variables(NamedTuple):
    """Parameters and batch statistics of several networks, by the networks' names."""

    params: dict[str, Any]
    batch_stats: dict[str, Any]


def init_networks(networks: dict[str, tuple[nn.Module, jax.Array]], key: chex.PRNGKey) -> Variables:
    """Initialises networks by name, each on an input of its own."""
    params, batch_stats = {}, {}
    for i, (name, (network, example)) in enumerate(networks.items()):
        initialise = jax.jit(functools.partial(network.init, train=False))
        variables = initialise(jax.random.fold_in(key, i), example)
        params[name] = variables["params"]
        batch_stats[name] = variables.get("batch_stats", {})
    return Variables(params, batch_stats)


def init(config: ModelConfig, key: chex.PRNGKey) -> Variables:
    """Random networks, and a uniform p(n)."""
    appearance = config.appearance_net()
    size = max(2 * appearance.radius + 1, config.appearance.space_to_depth)
    image = jnp.zeros((1, 16, 16, config.channels))
    variables = init_networks(
        {
            "location": (config.location_net(), image),
            "appearance": (appearance, jnp.zeros((1, size, size, config.channels))),
            "decoder": (config.sprite_decoder(), jnp.zeros((1, config.latent_size))),
        },
        key,
    )
    variables.params["count"] = jnp.zeros(config.max_objects + 1)
    return variables


def apply(network: nn.Module, name: str, variables: Variables, *inputs, train: bool, **kwargs):
    """A network's output, and the variables with its batch statistics updated."""
    collections = {
        "params": variables.params[name],
        "batch_stats": variables.batch_stats[name],
    }
    if not train:
        return network.apply(collections, *inputs, train=False, **kwargs), variables
    output, updates = network.apply(
        collections, *inputs, train=True, mutable=["batch_stats"], **kwargs
    )
    stats = {**variables.batch_stats, name: updates.get("batch_stats", {})}
    return output, variables._replace(batch_stats=stats)
