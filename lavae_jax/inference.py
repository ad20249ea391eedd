"""The inference model q(z_loc, z_app, n | x) (Section 2)."""

import jax
import jax.numpy as jnp

from lavae_jax import counting, gaussian, model, placement
from lavae_jax.gaussian import Gaussian
from lavae_jax.locations import Locations
from lavae_jax.model import ModelConfig, Variables
from lavae_jax.packing import Objects

OFF_PEAK = 30.0  # nats by which, at least, other pixels are less likely: support "peaks"


def location_logits(
    config: ModelConfig,
    variables: Variables,
    x: jax.Array,
    *,
    train: bool,
    axis_name: str | None = None,
) -> tuple[jax.Array, Variables]:
    """h_loc [B, H, W], γ included."""
    network = config.location_net(axis_name)
    logits, variables = model.apply(network, "location", variables, x, train=train)
    return config.gamma_for(x.shape[1:3]) * logits, variables


def find_peaks(config: ModelConfig, h_loc: jax.Array) -> jax.Array:
    """Which pixels of h_loc [B, H, W] f_count counts."""
    return counting.peaks(h_loc, _threshold(config, h_loc), config.peak_radius)


def infer_count(config: ModelConfig, h_loc: jax.Array) -> jax.Array:
    """n̂ = f_count(h_loc) [B]; q(n | x) = δ(n - n̂)."""
    threshold = _threshold(config, h_loc)
    return counting.count(h_loc, threshold, config.peak_radius, config.max_objects)


def _threshold(config, h_loc):
    return config.threshold * config.gamma_for(h_loc.shape[1:3])


def peak_locations(config: ModelConfig, h_loc: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The pixels [B, M] that f_count counts, highest first, and how many there are, n̂ [B].

    What follows the first n̂ of an image is arbitrary.
    """
    height = jnp.where(find_peaks(config, h_loc), h_loc, -jnp.inf).reshape(len(h_loc), -1)
    return jax.lax.top_k(height, config.max_objects)[1], infer_count(config, h_loc)


def sampling_logits(config: ModelConfig, h_loc: jax.Array) -> jax.Array:
    """The logits [B, H, W] of q(z_loc): h_loc, or what is left of it on the peaks alone.

    A peak is above the threshold, and every other pixel is brought far below it.
    """
    if config.support == "pixels":
        return h_loc
    elsewhere = jnp.minimum(h_loc, _threshold(config, h_loc)) - OFF_PEAK
    return jnp.where(find_peaks(config, h_loc), h_loc, elsewhere)


def appearance(
    config: ModelConfig,
    variables: Variables,
    x: jax.Array,
    where: Locations,
    objects: Objects,
    *,
    train: bool,
    axis_name: str | None = None,
) -> tuple[Gaussian, Variables]:
    """q(z_app | z_loc, x) of each object [P, L]: h_app read at its location.

    Either from the map h_app of the whole image, h_app[z_loc], or computed on the
    window around each location alone. Both give the same numbers at hard locations.
    At a relaxed one, the first is the mean of h_app under z_loc and the second is the
    network's value on the mean window; both pass the gradient on to z_loc.

    Hard locations may be those of K samples of each image: objects then belong to K B
    images, which are the B images x over and over.
    """
    form = _from_map if config.appearance.form == "map" else _from_windows
    features, variables = form(config, variables, x, where, objects, train, axis_name)
    return gaussian.from_features(features), variables


def appearance_map(config, variables, x, *, train, axis_name=None) -> tuple[jax.Array, Variables]:
    """h_app [B, H, W, 2L]."""
    network = config.appearance_net(axis_name)
    margin = (network.radius, network.radius)
    padded = jnp.pad(x, ((0, 0), margin, margin, (0, 0)))
    return model.apply(network, "appearance", variables, padded, train=train)


def _from_map(config, variables, x, where, objects, train, axis_name):
    h_app, variables = appearance_map(config, variables, x, train=train, axis_name=axis_name)
    h_app = h_app.reshape(len(x), -1, h_app.shape[-1])
    if where.weights is None:
        return h_app[objects.image % len(x), objects.gather(where.index)], variables
    return objects.gather(where.weights @ h_app), variables


def _from_windows(config, variables, x, where, objects, train, axis_name):
    network = config.appearance_net(axis_name)
    size = 2 * network.radius + 1
    if where.weights is None:
        seen = placement.windows_at(x, objects.gather(where.index), objects.image % len(x), size)
    else:
        weights = objects.gather(where.weights).reshape(-1, *x.shape[1:3])
        seen = placement.windows(x, weights, objects.image, size)
    features, variables = model.apply(
        network, "appearance", variables, seen, train=train, mask=objects.valid
    )
    return features[:, 0, 0], variables
