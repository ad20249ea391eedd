"""Locations: categorical samples without replacement over the D pixels (Section 2).

q(z_loc^(i) | z_loc^(<i), x) = Cat(b^(i)),  b^(i) ∝ softmax(h_loc) · (1 - Σ_{j<i} z_loc^(j)),
p(z_loc^(i) | z_loc^(<i)) = uniform over the D - i + 1 pixels that are left.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

EXCLUDED = -1e9  # the logit of a pixel that was drawn before: "a low value" (App. B)
ExcludedBy = Callable[[jax.Array], jax.Array]  # pixels [B] -> excluded pixels [B, D] bool


class Locations(NamedTuple):
    """S locations for each of B images.

    Attributes:
        index: flat pixel indices, [B, S] int32; for a relaxed sample, of the largest weights.
        weights: relaxed one-hot vectors, [B, S, D]; None if locations are hard.
        log_q: log q of each location given the earlier ones, [B, S].
    """

    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    weights: jax.Array | None
    log_q: jax.Array

    @classmethod
    def hard(cls, index: jax.Array) -> "Locations":
        """Creates hard locations that are given, not sampled.

        Args:
            index: flat pixel indices, [B, S].

        Returns:
            Locations with log q = 0.
        """
        return cls(index, None, jnp.zeros(index.shape))


def sample(
    keys: chex.PRNGKey,
    logits: jax.Array,
    num_slots: int,
    temperature: jax.Array | None = None,
    excluded_by: ExcludedBy | None = None,
) -> Locations:
    """Samples different pixels one after another.

    Args:
        keys: random keys, one for each image, [B].
        logits: unnormalised log probabilities of pixels, [B, D].
        num_slots: S, how many pixels are sampled.
        temperature: τ of the Gumbel-softmax, a scalar; None for exact samples.
        excluded_by: which pixels a draw excludes from later draws (see `within`); by default, its
            own pixel.

    Returns:
        Locations, [B, S].

    Raises:
        ValueError: if S > D.
    """
    gumbel = jax.vmap(lambda k: jax.random.gumbel(k, logits.shape[1:], logits.dtype))(keys)
    return sample_with_noise(logits, gumbel, num_slots, temperature, excluded_by)


def within(radius: int, canvas: Sequence[int]) -> ExcludedBy:
    """Excludes the square of pixels around a draw.

    Args:
        radius: the largest distance, in rows and in columns, from a draw to an excluded pixel.
        canvas: height and width, H and W.

    Returns:
        A function of pixels [B] that marks those that they exclude, [B, D] bool.
    """
    rows, columns = jnp.divmod(jnp.arange(canvas[0] * canvas[1]), canvas[1])

    def excluded(index: jax.Array) -> jax.Array:
        row, column = jnp.divmod(index[:, None], canvas[1])
        return (jnp.abs(rows - row) <= radius) & (jnp.abs(columns - column) <= radius)

    return excluded


def sample_with_noise(
    logits: jax.Array,
    gumbel: jax.Array,
    num_slots: int,
    temperature: jax.Array | None = None,
    excluded_by: ExcludedBy | None = None,
) -> Locations:
    """Computes `sample` as a deterministic function of Gumbel noise.

    All draws of an image share their noise: the pixels with the largest perturbed logits, in order,
    are distributed exactly as draws without replacement (Plackett-Luce), and only one noise vector
    is needed instead of S. This also holds if a draw excludes other pixels, since which pixel has
    the largest perturbed logit is independent of how large that logit is.

    Args:
        logits: unnormalised log probabilities of pixels, [B, D].
        gumbel: standard Gumbel noise, [B, D].
        num_slots: S, how many pixels are sampled.
        temperature: τ of the Gumbel-softmax, a scalar; None for exact samples.
        excluded_by: which pixels a draw excludes from later draws; by default, its own pixel.

    Returns:
        Locations, [B, S].

    Raises:
        ValueError: if S > D.
    """
    chex.assert_rank([logits, gumbel], 2)
    chex.assert_equal_shape([logits, gumbel])
    num_pixels = logits.shape[-1]
    if num_slots > num_pixels:
        raise ValueError(f"{num_slots} locations cannot be drawn from {num_pixels} pixels")
    if temperature is None and excluded_by is None:
        return _draw_at_once(logits, gumbel, num_slots)
    excluded_by = excluded_by or functools.partial(
        jax.nn.one_hot, num_classes=num_pixels, dtype=bool
    )
    return _draw_in_turn(logits, gumbel, num_slots, temperature, excluded_by)


def _draw_in_turn(logits, gumbel, num_slots, temperature, excluded_by):
    """Draws one pixel after another, and masks those that a draw excludes."""

    def draw(masked: jax.Array, _):
        perturbed, log_b = masked + gumbel, jax.nn.log_softmax(masked)
        index = jnp.argmax(perturbed, axis=-1)
        if temperature is None:
            weights, log_q = None, jnp.take_along_axis(log_b, index[:, None], axis=-1)[:, 0]
        else:
            weights = jax.nn.softmax(perturbed / temperature)
            log_q = jnp.sum(weights * log_b, axis=-1)
        return jnp.where(excluded_by(index), EXCLUDED, masked), Locations(index, weights, log_q)

    _, drawn = lax.scan(draw, logits, length=num_slots)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), drawn)


def _draw_at_once(logits, gumbel, num_slots):
    """Exact draws that exclude only their own pixel: the largest perturbed logits, in order."""
    index = lax.top_k(logits + gumbel, num_slots)[1]
    drawn = jnp.take_along_axis(logits, index, axis=-1)
    never_drawn = jax.vmap(lambda row, taken: row.at[taken].set(EXCLUDED))(logits, index)
    rest = jax.nn.logsumexp(never_drawn, axis=-1, keepdims=True)
    # Draw i is normalised over itself, later draws, and what is never drawn.
    normaliser = lax.cumlogsumexp(jnp.concatenate([drawn, rest], -1), axis=1, reverse=True)
    return Locations(index, None, drawn - normaliser[:, :-1])


def on_canvas(drawn: Locations, pixel: jax.Array, num_pixels: int) -> Locations:
    """Maps locations among candidate pixels to locations on the canvas.

    Args:
        drawn: locations among the Q candidates of each image, [B, S].
        pixel: flat indices of the candidates, [B, Q].
        num_pixels: D.

    Returns:
        Locations among all D pixels, [B, S].
    """
    index = jnp.take_along_axis(pixel, drawn.index, axis=1)
    if drawn.weights is None:
        return drawn._replace(index=index)
    nowhere = jnp.zeros((drawn.weights.shape[1], num_pixels), drawn.weights.dtype)
    weights = jax.vmap(lambda pixel, w: nowhere.at[:, pixel].set(w))(pixel, drawn.weights)
    return drawn._replace(index=index, weights=weights)


def log_prior(num_pixels: int, num_slots: int) -> jax.Array:
    """Computes log p of each location given the earlier ones, -log(D - i + 1) for i = 1..S.

    Args:
        num_pixels: D.
        num_slots: S.

    Returns:
        Log probabilities, [S].
    """
    return -jnp.log(num_pixels - jnp.arange(num_slots, dtype=float))
