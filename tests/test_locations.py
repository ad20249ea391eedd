import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.test_util import check_grads

from lavae_jax import generative, locations

LOGITS = np.array([0.3, -1.0, 1.2, 0.0, -0.4])


def keys(seed, n):
    return jax.random.split(jax.random.key(seed), n)


def probability(sequence, logits=LOGITS):
    """Drawing without replacement, from its definition."""
    weight = np.exp(logits)
    p, left = 1.0, weight.sum()
    for d in sequence:
        p *= weight[d] / left
        left -= weight[d]
    return p


@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_frequencies_are_those_of_drawing_without_replacement(num_slots):
    n = 20_000
    drawn = locations.sample(keys(0, n), jnp.tile(LOGITS, (n, 1)), num_slots)
    sequences = list(itertools.permutations(range(5), num_slots))
    seen = dict.fromkeys(sequences, 0)
    for row in np.asarray(drawn.index):
        seen[tuple(row.tolist())] += 1  # a repeated location is a KeyError
    expected = n * np.array([probability(s) for s in sequences])
    assert scipy.stats.chisquare(list(seen.values()), expected).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [None, 0.5])
def test_no_location_is_drawn_twice(temperature):
    logits = 8 * jax.random.normal(jax.random.key(1), (200, 12))
    index = np.asarray(locations.sample(keys(2, 200), logits, 12, temperature).index)
    np.testing.assert_array_equal(np.sort(index), np.tile(np.arange(12), (200, 1)))


def test_log_q_is_the_product_of_the_renormalised_conditionals():
    drawn = locations.sample(keys(3, 50), jnp.tile(LOGITS, (50, 1)), 4)
    expected = [np.log(probability(row)) for row in np.asarray(drawn.index)]
    np.testing.assert_allclose(drawn.log_q.sum(1), expected, rtol=1e-5)


def test_a_cold_relaxed_sample_is_the_hard_one():
    logits = jnp.tile(LOGITS, (100, 1))
    hard = locations.sample(keys(4, 100), logits, 3)
    cold = locations.sample(keys(4, 100), logits, 3, 1e-4)
    np.testing.assert_array_equal(hard.index, cold.index)
    one_hot = jax.nn.one_hot(hard.index, 5)
    clear = np.abs(cold.weights - one_hot).max(-1) < 1e-3
    assert clear.mean() > 0.99  # the others are ties at this temperature
    np.testing.assert_allclose(cold.log_q[clear], hard.log_q[clear], rtol=1e-2)


def test_a_relaxed_sample_is_a_distribution_over_the_pixels_that_are_left():
    drawn = locations.sample(keys(5, 100), jnp.tile(LOGITS, (100, 1)), 3, 0.7)
    np.testing.assert_allclose(drawn.weights.sum(-1), 1, rtol=1e-5)
    earlier = np.asarray(jax.nn.one_hot(drawn.index[:, 0], 5)).astype(bool)
    assert (np.asarray(drawn.weights[:, 1])[earlier] == 0).all()
    assert (np.asarray(drawn.weights[:, 2])[earlier] == 0).all()


@pytest.mark.parametrize("temperature", [None, 0.6])
def test_draws_from_candidates_are_draws_from_all_pixels_if_no_other_is_possible(temperature):
    pixel = jnp.array([[7, 2, 5, 0, 11], [3, 1, 4, 8, 9]])
    gumbel = jax.random.gumbel(jax.random.key(6), (2, 12))

    def on_all(some):
        return jax.vmap(lambda row, p: jnp.full(12, locations.EXCLUDED).at[p].set(row))(some, pixel)

    logits = jnp.tile(LOGITS, (2, 1))
    noise = jnp.take_along_axis(gumbel, pixel, axis=1)
    drawn = locations.sample_with_noise(logits, noise, 3, temperature)
    at_candidates = locations.on_canvas(drawn, pixel, 12)
    every = locations.sample_with_noise(on_all(logits), gumbel, 3, temperature)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), at_candidates, every)


CANVAS = (3, 4)


def apart(sequence, radius=1):
    """Probability of a sequence on the canvas if each draw takes all within the radius."""
    weight = np.exp(np.sin(np.arange(12)))
    rows, columns = np.divmod(np.arange(12), CANVAS[1])
    p = 1.0
    for d in sequence:
        p *= weight[d] / weight.sum()
        near = np.maximum(abs(rows - rows[d]), abs(columns - columns[d])) <= radius
        weight = np.where(near, 0, weight)
    return p


def test_draws_that_exclude_their_neighbours_have_the_defined_frequencies():
    """All pairs that are possible, from the definition; log q is that of each."""
    n = 20_000
    logits = jnp.tile(np.sin(np.arange(12)), (n, 1))
    drawn = locations.sample(keys(7, n), logits, 2, None, locations.within(1, CANVAS))
    pairs = [pair for pair in itertools.permutations(range(12), 2) if apart(pair)]
    assert len(pairs) == 2 * (66 - 29)  # 29 pairs of pixels of 3x4 touch
    seen = dict.fromkeys(pairs, 0)
    for row in np.asarray(drawn.index):
        seen[tuple(row.tolist())] += 1  # an impossible one is a KeyError
    expected = n * np.array([apart(pair) for pair in pairs])
    assert scipy.stats.chisquare(list(seen.values()), expected).pvalue > 1e-3
    log_q = [np.log(apart(row)) for row in np.asarray(drawn.index[:50])]
    np.testing.assert_allclose(drawn.log_q[:50].sum(1), log_q, rtol=1e-5)


def test_a_radius_of_0_excludes_the_pixel_alone():
    logits = jax.random.normal(jax.random.key(1), (20, 12))
    gumbel = jax.random.gumbel(jax.random.key(2), (20, 12))
    for temperature in (None, 0.4):
        alone = locations.sample_with_noise(logits, gumbel, 3, temperature)
        within = locations.within(0, CANVAS)
        same = locations.sample_with_noise(logits, gumbel, 3, temperature, within)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), alone, same)


def test_gradients_at_fixed_noise():
    with jax.enable_x64(True):
        logits = jax.random.normal(jax.random.key(0), (2, 6), jnp.float64)
        gumbel = jax.random.gumbel(jax.random.key(1), (2, 6), jnp.float64)

        @jax.jit
        def relaxed(logits):
            return locations.sample_with_noise(logits, gumbel, 3, 0.6)[1:]

        @jax.jit
        def hard(logits):
            return locations.sample_with_noise(logits, gumbel, 3).log_q

        check_grads(relaxed, (logits,), order=1, modes=["rev", "fwd"])
        check_grads(hard, (logits,), order=1, modes=["rev"])


def test_prior_sums_to_one_over_counts_and_ordered_locations():
    lavae = types.SimpleNamespace(count_logits=jnp.array([0.5, -1.0, 2.0]))
    total, pixels = 0.0, 9
    for n in range(3):
        log_p = generative.log_prior_count(lavae, jnp.array([n]))
        log_p += generative.log_prior_locations(pixels, jnp.array([n]), 2)
        total += len(list(itertools.permutations(range(pixels), n))) * np.exp(log_p[0])
    np.testing.assert_allclose(total, 1, rtol=1e-5)


def test_more_locations_than_pixels_are_refused():
    with pytest.raises(ValueError, match="6 locations cannot be drawn from 5 pixels"):
        locations.sample(keys(0, 1), jnp.zeros((1, 5)), 6)
