"""The generative model p(x, z_loc, z_app, n) (Section 2), as functions of a bound LAVAE."""

import chex
import jax
import jax.numpy as jnp
from jax import lax

from lavae_jax import bernoulli, likelihoods, locations, packing, placement, prior
from lavae_jax.likelihoods import Likelihood
from lavae_jax.locations import Locations
from lavae_jax.model import LAVAE
from lavae_jax.packing import PackedObjects
from lavae_jax.scene import Scene


def log_prior_count(lavae: LAVAE, count: jax.Array) -> jax.Array:
    """Computes log p(n) = log a_n.

    Args:
        lavae: bound model.
        count: n, [B].

    Returns:
        log p(n), [B].
    """
    return jax.nn.log_softmax(lavae.count_logits)[count]


def log_prior_locations(num_pixels: int, count: jax.Array, num_slots: int) -> jax.Array:
    """Computes log p(z_loc | n), the sum of -log(D - i + 1) over i = 1..n.

    Args:
        num_pixels: D.
        count: n, [B].
        num_slots: S, the largest n.

    Returns:
        log p(z_loc | n), [B].
    """
    terms = locations.log_prior(num_pixels, num_slots)
    return jnp.concatenate([jnp.zeros(1, terms.dtype), jnp.cumsum(terms)])[count]


def decode(lavae: LAVAE, z_app: jax.Array, objects: PackedObjects) -> jax.Array:
    """Decodes appearances into sprites by f_sprite.

    Args:
        lavae: bound model.
        z_app: appearances, [P, L].
        objects: the packed objects that they belong to.

    Returns:
        Sprites, [P, h, w, C]; 0 where there is no object.
    """
    return objects.mask(lavae.decoder(z_app, objects.valid))


def intensity(
    sprites: jax.Array,
    where: Locations,
    objects: PackedObjects,
    canvas: tuple[int, int],
    composition: str = "sum",
) -> jax.Array:
    """Composes sprites into λ.

    With "sum", λ = Σ_i f_sprite(z_app^(i)) * z_loc^(i), as in the paper. With "over", slots are
    painted one after another: the brightest channel of a sprite is its opacity. For one channel,
    this is the noisy-or 1 - Π_i (1 - sprite_i), for any order of the slots.

    Args:
        sprites: [P, h, w, C].
        where: locations, [B, S].
        objects: the packed objects that the sprites belong to.
        canvas: height and width, H and W.
        composition: "sum" or "over".

    Returns:
        λ, [B, H, W, C].
    """
    num_images, num_slots = where.index.shape
    if composition == "sum":
        placed_at = jax.tree.map(objects.gather, where)
        return _place(sprites, placed_at, objects.image, num_images, canvas)
    by_slot = jnp.moveaxis(objects.scatter(sprites, num_images, num_slots), 1, 0)
    slots = jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), where)
    image = jnp.arange(num_images)

    def paint(behind: jax.Array, slot: tuple[jax.Array, Locations]) -> tuple[jax.Array, None]:
        front = _place(*slot, image, num_images, canvas)
        return behind * (1 - front.max(-1, keepdims=True)) + front, None

    nothing = jnp.zeros((num_images, *canvas, sprites.shape[-1]), sprites.dtype)
    return lax.scan(paint, nothing, (by_slot, slots))[0]


def _place(
    sprites: jax.Array,
    where: Locations,
    image: jax.Array,
    num_images: int,
    canvas: tuple[int, int],
) -> jax.Array:
    """The sum of sprites [P, h, w, C], each at its location [P] in its image."""
    if where.weights is None:
        return placement.place_at(sprites, where.index, image, num_images, canvas)
    return placement.place(sprites, where.weights.reshape(-1, *canvas), image, num_images)


def log_likelihood(
    x: jax.Array, intensity: jax.Array, likelihood: Likelihood = bernoulli
) -> jax.Array:
    """Computes log p(x | z_loc, z_app), summed over D pixels and C channels.

    Args:
        x: images, [B, H, W, C].
        intensity: λ, [B, H, W, C].
        likelihood: p(x | λ) of a pixel.

    Returns:
        Log likelihoods, [B].
    """
    return bernoulli.sum_pixels(likelihood.log_prob(x, intensity))


# --- scenes ------------------------------------------------------------------


def sample_prior(
    lavae: LAVAE,
    keys: chex.PRNGKey,
    canvas: tuple[int, int],
    count_logits: jax.Array | None = None,
) -> Scene:
    """Samples scenes from the prior p(z_loc, z_app, n).

    Args:
        lavae: bound model.
        keys: random keys, one for each scene, [B].
        canvas: height and width, H and W.
        count_logits: [B, M + 1], replaces the logits of p(n).

    Returns:
        B scenes.
    """
    slots, pixels = lavae.settings.max_objects, canvas[0] * canvas[1]
    if count_logits is None:
        count_logits = jnp.broadcast_to(lavae.count_logits, (len(keys), slots + 1))
    count_keys, location_keys, appearance_keys = jax.vmap(
        lambda key: jax.random.split(key, 3), out_axes=1
    )(keys)
    count = jax.vmap(jax.random.categorical)(count_keys, count_logits)
    where = locations.sample(location_keys, jnp.zeros((len(keys), pixels)), slots)
    z_app = jax.vmap(lambda key: _draw_appearances(lavae, key, slots))(appearance_keys)
    return Scene.from_pixels(count, where.index, z_app, canvas)


def _draw_appearances(lavae: LAVAE, key: chex.PRNGKey, number: int) -> jax.Array:
    noise = jax.random.normal(key, (number, lavae.settings.latent_size))
    choice = jax.random.uniform(jax.random.fold_in(key, 1), (number,))
    return prior.sample(lavae.prior, noise, choice)


def sprites(lavae: LAVAE, scene: Scene) -> jax.Array:
    """Decodes the sprite of each object in scenes.

    Args:
        lavae: bound model.
        scene: B scenes with M slots each.

    Returns:
        Sprites, [B, M, h, w, C]; 0 where there is no object.
    """
    drawn, objects = _decode_scene(lavae, scene)
    return objects.scatter(drawn, *scene.location.shape[:2])


def render(lavae: LAVAE, scene: Scene) -> jax.Array:
    """Renders scenes.

    Args:
        lavae: bound model.
        scene: B scenes.

    Returns:
        Pixel means E[x | z], [B, H, W, C]; for binary images, the probability of foreground.
    """
    drawn, objects = _decode_scene(lavae, scene)
    where = Locations.hard(scene.pixel)
    total = intensity(drawn, where, objects, scene.canvas, lavae.settings.composition)
    return likelihoods.of(lavae.settings).pixel_means(total)


def _decode_scene(lavae: LAVAE, scene: Scene) -> tuple[jax.Array, PackedObjects]:
    size, slots = scene.location.shape[:2]
    objects = packing.pack(scene.count, size * slots)
    return decode(lavae, objects.gather(scene.appearance), objects), objects
