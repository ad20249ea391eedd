"""The inference model q(z_loc, z_app, n | x) (Section 2), as functions of a bound LAVAE."""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from lavae_jax import counting, gaussian, locations, packing, placement
from lavae_jax.gaussian import Gaussian
from lavae_jax.locations import Locations
from lavae_jax.model import LAVAE
from lavae_jax.packing import Budget, PackedObjects
from lavae_jax.scene import Scene
from lavae_jax.settings import LavaeSettings

OFF_PEAK = 30.0  # nats by which, at least, other pixels are less likely: support "peaks"


# --- where objects are, and how many -----------------------------------------


class Detection(NamedTuple):
    """What the location network finds in B images."""

    h_loc: jax.Array  # [B, H, W], γ included
    peaks: jax.Array  # [B, H, W] bool: the pixels that f_count counts
    count: jax.Array  # [B]: n̂ = f_count(h_loc), at most M; q(n | x) = δ(n - n̂)


def location_logits(lavae: LAVAE, x: jax.Array) -> jax.Array:
    """h_loc [B, H, W], γ included."""
    return lavae.settings.gamma_for(x.shape[1:3]) * lavae.location(x)


def detect(settings: LavaeSettings, h_loc: jax.Array) -> Detection:
    """Finds the peaks of h_loc [B, H, W] and counts them."""
    peaks = counting.peaks(h_loc, settings.threshold_for(h_loc.shape[1:3]), settings.peak_radius)
    return Detection(h_loc, peaks, counting.count(peaks, settings.max_objects))


def object_logits(settings: LavaeSettings, h_loc: jax.Array) -> jax.Array:
    """The log odds, from h_loc [B, H, W], that an object is located at a pixel."""
    return log_odds(settings, h_loc / settings.gamma_for(h_loc.shape[1:3]))


def log_odds(settings: LavaeSettings, logits: jax.Array) -> jax.Array:
    """The same from what the location network returns, before γ."""
    return logits - settings.threshold + settings.log_odds_at_threshold


def peak_locations(settings: LavaeSettings, detection: Detection) -> Locations:
    """The first M peaks of each image, highest first.

    What follows the first n̂ of an image is arbitrary.
    """
    return Locations.hard(_peaks_first(settings, detection)[1])


class LocationPosterior(NamedTuple):
    """q(n | x), and the C pixels of each image that q(z_loc | n, x) draws from."""

    count: jax.Array  # [B]: n̂
    logits: jax.Array  # [B, C]
    pixel: jax.Array | None  # [B, C]; None if they are all D, in order
    # [B, C, N]: components of the prior that an object there may belong to; None for all
    near: jax.Array | None = None


def location_posterior(settings: LavaeSettings, detection: Detection) -> LocationPosterior:
    """Over all pixels by h_loc, as in the paper, or over the first M peaks.

    Peaks are equally likely at each draw, so q gives all n! orders of the same locations the same
    probability, as p does.
    """
    if settings.support == "pixels":
        return LocationPosterior(detection.count, _flat(detection.h_loc), None)
    logits, pixel = _peaks_first(settings, detection)
    threshold = settings.threshold_for(detection.h_loc.shape[1:3])
    return LocationPosterior(detection.count, jnp.minimum(logits, threshold), pixel)


def infer_locations(lavae: LAVAE, x: jax.Array) -> LocationPosterior:
    """q(n | x) and q(z_loc | n, x) of images [B, H, W, C]."""
    detection = detect(lavae.settings, location_logits(lavae, x))
    return location_posterior(lavae.settings, detection)


def _peaks_first(settings, detection) -> tuple[jax.Array, jax.Array]:
    """Logits and pixels of M pixels, highest first.

    A peak is above the threshold; where there are fewer than M, other pixels follow far below.
    """
    h_loc = detection.h_loc
    elsewhere = jnp.minimum(h_loc, settings.threshold_for(h_loc.shape[1:3])) - OFF_PEAK
    logits = jnp.where(detection.peaks, h_loc, elsewhere)
    return jax.lax.top_k(_flat(logits), settings.max_objects)


def _flat(maps):
    return maps.reshape(len(maps), -1)


# --- what they look like -----------------------------------------------------


def appearance(lavae: LAVAE, x: jax.Array, where: Locations, objects: PackedObjects) -> Gaussian:
    """q(z_app | z_loc, x) of each object [P, L]: h_app read at its location.

    Either from the map h_app of the whole image, h_app[z_loc], or computed on the
    window around each location alone. Both give the same numbers at hard locations.
    At a relaxed one, the first is the mean of h_app under z_loc and the second is the
    network's value on the mean window; both pass the gradient on to z_loc.

    Hard locations may be those of K samples of each image: objects then belong to K B
    images, which are the B images x over and over.
    """
    on_map = lavae.settings.appearance.computed_on == "map"
    read = _read_map if on_map else _read_windows
    return gaussian.from_features(read(lavae, x, where, objects))


def appearance_map(lavae: LAVAE, x: jax.Array) -> jax.Array:
    """h_app [B, H, W, 2L]."""
    margin = (lavae.appearance.radius, lavae.appearance.radius)
    return lavae.appearance(jnp.pad(x, ((0, 0), margin, margin, (0, 0))))


def _read_map(lavae, x, where, objects):
    h_app = appearance_map(lavae, x)
    h_app = h_app.reshape(len(x), -1, h_app.shape[-1])
    if where.weights is None:
        return h_app[objects.image % len(x), objects.gather(where.index)]
    return objects.gather(where.weights @ h_app)


def _read_windows(lavae, x, where, objects):
    size = 2 * lavae.appearance.radius + 1
    if where.weights is None:
        seen = placement.windows_at(x, objects.gather(where.index), objects.image % len(x), size)
    else:
        weights = objects.gather(where.weights).reshape(-1, *x.shape[1:3])
        seen = placement.windows(x, weights, objects.image, size)
    return lavae.appearance(seen, objects.valid)[:, 0, 0]


# --- samples -----------------------------------------------------------------


class Posterior(NamedTuple):
    """One sample of q(z_loc, z_app | n, x) for each image."""

    count: jax.Array  # [B]: the number of objects used
    where: Locations
    objects: PackedObjects
    appearance: Gaussian  # [P, L]
    noise: jax.Array  # [P, L]: ε
    overflow: jax.Array  # []: objects that were cut because the budget is too small
    near: jax.Array | None = None  # [P, N]: components of the prior; None for all

    @property
    def z_app(self) -> jax.Array:
        return gaussian.sample(self.appearance, self.noise)


def sample_posterior(
    lavae: LAVAE,
    x: jax.Array,
    located: LocationPosterior,
    count: jax.Array,
    keys: chex.PRNGKey,
    budget: Budget,
    temperature: jax.Array | None = None,
) -> Posterior:
    """Locations and appearances of `count` objects in images x [B, H, W, C].

    With a temperature the locations are relaxed, so that a gradient reaches them. Without,
    there may be posteriors of K B images, with as many counts and keys: K samples of each image.
    """
    chex.assert_rank(x, 4)
    location_keys, appearance_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    count, overflow = packing.fit(count, budget)
    objects = packing.pack(count, budget.capacity)
    canvas, radius = x.shape[1:3], lavae.settings.exclusion_radius
    is_apart = located.pixel is not None or radius == 0
    excluded_by = None if is_apart else locations.within(radius, canvas)
    where = locations.sample(
        location_keys, located.logits, budget.num_slots, temperature, excluded_by
    )
    near = located.near
    if near is not None:
        near = near[objects.image, objects.gather(where.index)]
    if located.pixel is not None:
        where = locations.on_canvas(where, located.pixel, canvas[0] * canvas[1])
    q_app = appearance(lavae, x, where, objects)
    # Drawn for every slot, so that a sample does not depend on how objects are packed.
    shape = (budget.num_slots, lavae.settings.latent_size)
    draw = jax.vmap(lambda key: jax.random.normal(key, shape, q_app.mean.dtype))
    noise = objects.gather(draw(appearance_keys))
    return Posterior(count, where, objects, q_app, noise, overflow, near)


# --- scenes ------------------------------------------------------------------


def infer(lavae: LAVAE, x: jax.Array, max_objects: int | None = None) -> Scene:
    """The objects that are counted in images [B, H, W, C], and the means of their appearances.

    M bounds p(n), and not what h_loc can find: `max_objects` says how many there may be instead.
    `decomposition` has the form for images of any size, without a limit.
    """
    settings = lavae.settings
    if max_objects is not None:
        settings = dataclasses.replace(settings, max_objects=max_objects)
    detection = detect(settings, location_logits(lavae, x))
    where = peak_locations(settings, detection)
    objects = packing.pack(detection.count, where.index.size)
    q_app = appearance(lavae, x, where, objects)
    return _to_scene(settings, detection, where, objects, q_app.mean)


def sample_scene(lavae: LAVAE, x: jax.Array, keys: chex.PRNGKey) -> Scene:
    """A sample of q(z_loc, z_app, n | x) for each image."""
    detection = detect(lavae.settings, location_logits(lavae, x))
    located = location_posterior(lavae.settings, detection)
    budget = Budget.for_everything(lavae.settings.max_objects, len(x))
    drawn = sample_posterior(lavae, x, located, detection.count, keys, budget)
    return _to_scene(lavae.settings, detection, drawn.where, drawn.objects, drawn.z_app)


def _to_scene(settings, detection, where, objects, z_app):
    z_app = objects.scatter(z_app, *where.index.shape)
    logits = jnp.take_along_axis(_flat(object_logits(settings, detection.h_loc)), where.index, 1)
    canvas = detection.h_loc.shape[1:3]
    return Scene.from_pixels(detection.count, where.index, z_app, canvas, jax.nn.sigmoid(logits))
