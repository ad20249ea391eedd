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

OFF_PEAK = 30.0  # smallest gap between peaks and other pixels in nats, for support "peaks"


# --- locations and counts ----------------------------------------------------


class Detection(NamedTuple):
    """What the location network finds in B images.

    Attributes:
        h_loc: location logits, γ included, [B, H, W].
        peaks: the pixels that f_count counts, [B, H, W] bool.
        count: n̂ = f_count(h_loc), at most M, [B]; q(n | x) = δ(n - n̂).
    """

    h_loc: jax.Array
    peaks: jax.Array
    count: jax.Array  # type: ignore[assignment]  # hides tuple.count


def location_logits(lavae: LAVAE, x: jax.Array) -> jax.Array:
    """Computes h_loc, γ included.

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].

    Returns:
        h_loc, [B, H, W].
    """
    return lavae.settings.gamma_for(x.shape[1:3]) * lavae.location(x)


def detect(settings: LavaeSettings, h_loc: jax.Array) -> Detection:
    """Finds and counts the peaks of h_loc.

    Args:
        settings: the model's settings.
        h_loc: location logits, γ included, [B, H, W].

    Returns:
        The detection.
    """
    peaks = counting.peaks(h_loc, settings.threshold_for(h_loc.shape[1:3]), settings.peak_radius)
    return Detection(h_loc, peaks, counting.count(peaks, settings.max_objects))


def object_logits(settings: LavaeSettings, h_loc: jax.Array) -> jax.Array:
    """Converts h_loc into log-odds of an object at each pixel.

    Args:
        settings: the model's settings.
        h_loc: location logits, γ included, [B, H, W].

    Returns:
        Log-odds that an object is located at each pixel, [B, H, W].
    """
    return log_odds(settings, h_loc / settings.gamma_for(h_loc.shape[1:3]))


def log_odds(settings: LavaeSettings, logits: jax.Array) -> jax.Array:
    """Converts logits of the location network into log-odds of an object at each pixel.

    Args:
        settings: the model's settings.
        logits: output of the location network, before γ, [B, H, W].

    Returns:
        Log-odds that an object is located at each pixel, [B, H, W].
    """
    return logits - settings.threshold + settings.log_odds_at_threshold


def peak_locations(settings: LavaeSettings, detection: Detection) -> Locations:
    """Returns the M highest peaks of each image, in descending order.

    Args:
        settings: the model's settings.
        detection: what the location network finds in B images.

    Returns:
        Hard locations, [B, M]. Those after the first n̂ of an image are arbitrary.
    """
    return Locations.hard(_peaks_first(settings, detection)[1])


class LocationPosterior(NamedTuple):
    """q(n | x), and the Q candidate pixels of each image that q(z_loc | n, x) samples from.

    Attributes:
        count: n̂, [B].
        logits: the logits of the candidates, [B, Q].
        pixel: flat indices of the candidates, [B, Q]; None if they are all D pixels, in order.
        near: components of the prior that an object at a candidate may belong to, [B, Q, N]; None
            for all.
    """

    count: jax.Array  # type: ignore[assignment]  # hides tuple.count
    logits: jax.Array
    pixel: jax.Array | None
    near: jax.Array | None = None


def location_posterior(settings: LavaeSettings, detection: Detection) -> LocationPosterior:
    """Builds q(n | x) and q(z_loc | n, x) from a detection.

    With `settings.support` = "pixels", the candidates are all pixels, with the logits h_loc, as in
    the paper. With "peaks", they are the M highest peaks. These are equally likely at each draw, so
    q gives all n! orders of the same locations the same probability, as p does.

    Args:
        settings: the model's settings.
        detection: what the location network finds in B images.

    Returns:
        The posterior over D or M candidates.
    """
    if settings.support == "pixels":
        return LocationPosterior(detection.count, _flat(detection.h_loc), None)
    logits, pixel = _peaks_first(settings, detection)
    threshold = settings.threshold_for(detection.h_loc.shape[1:3])
    return LocationPosterior(detection.count, jnp.minimum(logits, threshold), pixel)


def infer_locations(lavae: LAVAE, x: jax.Array) -> LocationPosterior:
    """Infers q(n | x) and q(z_loc | n, x).

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].

    Returns:
        The posterior.
    """
    detection = detect(lavae.settings, location_logits(lavae, x))
    return location_posterior(lavae.settings, detection)


def _peaks_first(settings, detection) -> tuple[jax.Array, jax.Array]:
    """Logits and pixels of M pixels, highest first.

    Peaks are above the threshold. If there are fewer than M, other pixels follow, far below it.
    """
    h_loc = detection.h_loc
    elsewhere = jnp.minimum(h_loc, settings.threshold_for(h_loc.shape[1:3])) - OFF_PEAK
    logits = jnp.where(detection.peaks, h_loc, elsewhere)
    return jax.lax.top_k(_flat(logits), settings.max_objects)


def _flat(maps):
    return maps.reshape(len(maps), -1)


# --- appearances -------------------------------------------------------------


def appearance(lavae: LAVAE, x: jax.Array, where: Locations, objects: PackedObjects) -> Gaussian:
    """Infers q(z_app | z_loc, x) of each object: h_app at its location.

    Depending on `settings.appearance.computed_on`, the network runs on the whole image, whose map
    h_app is read at the locations, or on a window around each location. Both give the same numbers
    at hard locations. At a relaxed one, the first is the mean of h_app under z_loc, and the second
    is the network's output for the mean window; both pass the gradient on to z_loc.

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].
        where: locations, [B, S]; hard ones may be [K B, S], K samples of each image, with the
            images in the order of `x` repeated K times.
        objects: the P packed objects of the same B or K B images.

    Returns:
        Mean and log variance of each object's z_app, [P, L].
    """
    on_map = lavae.settings.appearance.computed_on == "map"
    read = _read_map if on_map else _read_windows
    return gaussian.from_features(read(lavae, x, where, objects))


def appearance_map(lavae: LAVAE, x: jax.Array) -> jax.Array:
    """Computes h_app of whole images.

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].

    Returns:
        h_app, [B, H, W, 2L].
    """
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
    """One sample of q(z_loc, z_app | n, x) for each image.

    Attributes:
        count: n, reduced where the budget is too small, [B].
        where: sampled locations, [B, S].
        objects: the P packed objects.
        appearance: q(z_app | z_loc, x), [P, L].
        noise: ε, [P, L].
        overflow: the number of objects left out because the budget is too small, a scalar.
        near: components of the prior that each object may belong to, [P, N]; None for all.
    """

    count: jax.Array  # type: ignore[assignment]  # hides tuple.count
    where: Locations
    objects: PackedObjects
    appearance: Gaussian
    noise: jax.Array
    overflow: jax.Array
    near: jax.Array | None = None

    @property
    def z_app(self) -> jax.Array:
        """Sampled appearances, [P, L]."""
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
    """Samples locations and appearances of the objects in images.

    With a temperature, locations are relaxed, so that gradients reach the location network. Without
    one, `located`, `count` and `keys` may have K B entries, for K samples of each image.

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].
        located: q(z_loc | n, x), for B or K B images.
        count: n, the number of objects to sample, [B] or [K B].
        keys: random keys, [B] or [K B].
        budget: how many objects are computed.
        temperature: τ of the Gumbel-softmax, a scalar; None for exact samples.

    Returns:
        The sample.
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
    """Infers the scenes in images: counts, peak locations and mean appearances.

    M limits the support of p(n), but h_loc can detect more objects. `decomposition` does the same
    for images of any size, without a limit on the number of objects.

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].
        max_objects: the largest number of objects in an image; None for M.

    Returns:
        B scenes.
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
    """Samples q(z_loc, z_app, n | x).

    Args:
        lavae: bound model.
        x: images, [B, H, W, C].
        keys: random keys, [B].

    Returns:
        B scenes.
    """
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
