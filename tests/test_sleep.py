"""Composed scenes, and what is trained and calibrated on them."""

import itertools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from jax.test_util import check_grads
from small_models import initialised, paper, small

from lavae_jax import networks, warmup
from lavae_jax.training import calibration, sleep


def keys(number, seed=0):
    return jax.random.split(jax.random.key(seed), number)


def blobs(rng, number=6, side=5, channels=1):
    """Objects whose middle pixel is foreground."""
    drawn = (rng.random((number, side, side, channels)) < 0.4).astype(np.float32)
    drawn[:, side // 2, side // 2] = 1
    return drawn


def painted(windows, pixel, canvas):
    """The same scene by loops over pixels, the last object in front."""
    height, width = canvas
    image = np.zeros((height, width, windows.shape[-1]), np.float32)
    radius = windows.shape[1] // 2
    for window, at in zip(windows, pixel, strict=True):
        for i, j in itertools.product(range(window.shape[0]), range(window.shape[1])):
            row, column = at // width + i - radius, at % width + j - radius
            if 0 <= row < height and 0 <= column < width and window[i, j].any():
                image[row, column] = window[i, j]
    return image


@pytest.mark.parametrize("channels", [1, 3])
def test_the_labels_of_a_scene_are_what_was_drawn(channels):
    objects = blobs(np.random.default_rng(0), channels=channels)
    scenes = jax.tree.map(np.asarray, sleep.compose(objects, keys(40), (9, 12), 4, 0.0))
    for image, count, pixel, windows, marked in zip(*scenes, scenes.marked, strict=True):
        known = [(windows[k] == o).all() for k in range(count) for o in objects]
        assert sum(known) == count
        assert not windows[count:].any()
        np.testing.assert_array_equal(image, painted(windows[:count], pixel[:count], (9, 12)))
        assert sorted(np.flatnonzero(marked)) == sorted(pixel[:count])
    assert set(scenes.count) == {0, 1, 2, 3, 4}


def test_counts_and_locations_are_uniform():
    objects = blobs(np.random.default_rng(0))
    scenes = sleep.compose(objects, keys(6_000), (3, 4), 2, 0.0)
    count, pixel = np.asarray(scenes.count), np.asarray(scenes.pixel)
    assert scipy.stats.chisquare(np.bincount(count, minlength=3)).pvalue > 1e-3
    ordered = np.bincount(pixel[:, 0] * 12 + pixel[:, 1], minlength=144).reshape(12, 12)
    assert not ordered.diagonal().any()  # without replacement
    assert scipy.stats.chisquare(ordered[~np.eye(12, dtype=bool)]).pvalue > 1e-3


def test_a_scene_depends_on_its_own_key_alone():
    objects = blobs(np.random.default_rng(0))
    together = sleep.compose(objects, keys(6), (9, 9), 3, 0.5)
    apart = [sleep.compose(objects, keys(6)[k : k + 2], (9, 9), 3, 0.5) for k in (0, 2, 4)]
    for a, *parts in zip(together, *apart, strict=True):
        np.testing.assert_array_equal(a, np.concatenate(parts))


def test_only_objects_that_stand_alone_are_isolated():
    """One alone, two with a common border, one near the next, one cut, one beside a speck."""
    settings = paper(sprite_size=5)
    x = np.zeros((1, 30, 30, 1), np.float32)
    places = [(6, 6), (6, 16), (6, 20), (20, 6), (20, 1), (20, 20)]
    for row, column in places:
        x[0, row - 1 : row + 2, column - 1 : column + 2] = 1
    x[0, 23, 20] = 1  # the speck, just outside the box of the last
    pixel = np.array([[row * 30 + column for row, column in places] + [0]])
    window, is_isolated = sleep.isolated(settings, x, pixel, np.array([6]))
    assert is_isolated.tolist() == [[True, False, False, False, False, False, False]]
    np.testing.assert_array_equal(window[0, 0], x[0, 4:9, 4:9])
    moved = pixel.copy()
    moved[0, 4] = 3 * 30 + 25  # nothing is there
    _, is_isolated = sleep.isolated(settings, x, moved, np.array([6]))
    # Without its neighbour, the fourth stands alone only where nothing else of it is seen.
    assert is_isolated.tolist() == [[True, False, False, True, False, False, False]]


def test_an_object_is_isolated_up_to_the_border_of_a_wide_canvas():
    settings = paper(sprite_size=5)
    for shape, at in (((1, 12, 30, 1), (6, 26)), ((1, 30, 12, 1), (26, 6))):
        x = np.zeros(shape, np.float32)
        x[0, at[0] - 1 : at[0] + 2, at[1] - 1 : at[1] + 2] = 1
        pixel = np.array([[at[0] * shape[2] + at[1]]])
        _, is_isolated = sleep.isolated(settings, x, pixel, np.array([1]))
        assert is_isolated.all()


def test_an_object_whose_square_ends_at_the_border_may_be_cut_and_is_not_isolated():
    settings, size = paper(sprite_size=5), 13
    for row, column in ((2, 6), (6, 2), (size - 3, 6), (6, size - 3)):
        towards = np.sign(6 - np.array([row, column]))  # the middle
        for step, expected in ((0, False), (1, True)):
            top, left = np.array([row, column]) + step * towards
            x = np.zeros((1, size, size, 1), np.float32)
            x[0, top - 2 : top + 3, left - 2 : left + 3] = 1  # fills its square
            pixel = np.array([[top * size + left]])
            _, is_isolated = sleep.isolated(settings, x, pixel, np.array([1]))
            assert is_isolated.item() is expected


def posterior_of_marks(canvas, objects, max_objects):
    """P(x) and P(there is an object at each pixel | x), by enumeration of p(n, z_loc, objects)."""
    pixels, total = np.prod(canvas), {}
    for count in range(max_objects + 1):
        orders = list(itertools.permutations(range(pixels), count))
        kinds = list(itertools.product(objects, repeat=count))
        each = 1 / (max_objects + 1) / len(orders) / len(kinds)
        for pixel, chosen in itertools.product(orders, kinds):
            windows = np.array(chosen).reshape(count, *objects.shape[1:])
            image = painted(windows, pixel, canvas)
            marks = np.isin(np.arange(pixels), pixel).astype(float)
            p, mean = total.get(image.tobytes(), (0.0, np.zeros(pixels)))
            total[image.tobytes()] = (p + each, mean + each * marks)
    return {image: (p, mean / p) for image, (p, mean) in total.items()}


def test_the_loss_is_least_at_the_posterior_and_is_its_entropy_there():
    """The forward KL by enumeration: every scene of two pixels' width on a canvas of 2x3."""
    objects = np.zeros((2, 3, 3, 1), np.float32)
    objects[0, 1, 1], objects[1, 1, 1:] = 1, 1  # a pixel; and one with a neighbour to its right
    exact = posterior_of_marks((2, 3), objects, 2)
    entropy = sum(
        p * sum(scipy.stats.bernoulli(m).entropy() for m in mean) for p, mean in exact.values()
    )
    scenes = sleep.compose(objects, keys(20_000), (2, 3), 2, 0.0)
    posterior = np.array([exact[np.asarray(x).tobytes()][1] for x in scenes.image])
    logits = jnp.asarray(np.clip(scipy.special.logit(posterior), -30, 30).reshape(-1, 2, 3))

    def loss(shift):
        return warmup.detection_loss(logits + shift, scenes.marked, 1.0, 0.0)

    assert 0 < entropy < 6 * np.log(2)
    assert float(loss(0.0)) == pytest.approx(entropy, rel=0.02)
    assert abs(float(jax.grad(loss)(0.0))) < 0.02
    assert float(loss(0.3)) > float(loss(0.0)) < float(loss(-0.3))


def test_the_gradient_of_the_appearance_loss_is_that_of_finite_differences():
    settings = small("dense", "windows")
    variables = initialised(settings)["params"]["appearance"]
    objects = jnp.asarray(blobs(np.random.default_rng(1)))
    net = networks.AppearanceNet(
        settings.appearance, 2 * settings.latent_size, networks.Execution()
    )

    def loss(params, params_of_target):
        """The network is applied to the objects alone first, which is the target."""
        in_turn = iter((params_of_target, params))

        def appearance(x):
            return net.apply({"params": next(in_turn)}, x)

        appearance.radius = net.radius
        module = types.SimpleNamespace(lavae=types.SimpleNamespace(appearance=appearance))
        return sleep.appearance_loss(module, objects, keys(3), 2, 0.5)

    check_grads(lambda params: loss(params, variables), (variables,), 1, modes="rev", rtol=2e-2)
    whole = jax.grad(lambda params: loss(params, params))(variables)
    without_target = jax.grad(lambda params: loss(params, variables))(variables)
    chex.assert_trees_all_close(whole, without_target, rtol=1e-5)


def test_an_object_that_is_surrounded_by_nothing_is_seen_as_it_is_alone():
    objects = jnp.asarray(blobs(np.random.default_rng(2)))
    for key in keys(8):
        alone, among = sleep._surround(objects, key, 9, 0, 0.0)
        np.testing.assert_array_equal(alone, among)
        assert any((alone[2:7, 2:7] == o).all() for o in objects)


def test_the_appearance_loss_is_that_of_the_object_among_its_neighbours():
    """By hand, for a network whose mean is the number of foreground pixels; the variance is 1."""
    objects = jnp.asarray(blobs(np.random.default_rng(3)))

    def appearance(x):
        total = x.sum((1, 2, 3))
        return jnp.stack([total, jnp.zeros_like(total)], -1)[:, None, None]

    appearance.radius = 4
    module = types.SimpleNamespace(lavae=types.SimpleNamespace(appearance=appearance))
    noise_keys, scene_keys = jax.vmap(jax.random.split, out_axes=1)(keys(40))
    alone, among = jax.vmap(lambda key: sleep._surround(objects, key, 9, 3, 0.0))(scene_keys)
    noise = jax.vmap(lambda key: jax.random.normal(key, (1,)))(noise_keys)[:, 0]
    z_app = alone.sum((1, 2, 3)) + noise
    expected = -scipy.stats.norm.logpdf(z_app, among.sum((1, 2, 3))).mean()
    loss = sleep.appearance_loss(module, objects, keys(40), 3, 0.0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert expected > 2  # nats; without neighbours it is the entropy, 1.4


def test_an_object_is_in_front_of_its_neighbours_half_of_the_time():
    """Every neighbour overlaps it, since objects are as large as the window."""
    colours = jax.random.uniform(jax.random.key(0), (99, 1, 1, 3), minval=0.5)
    objects = colours * jnp.ones((1, 9, 9, 1))
    alone, among = jax.vmap(lambda key: sleep._surround(objects, key, 9, 3, 0.0))(keys(500))
    is_whole = np.asarray((alone == among).all((1, 2, 3)))
    # 0 to 4 objects are equally likely; with 0 or 1, there is no neighbour.
    assert is_whole.mean() == pytest.approx(0.4 + 0.6 / 2, abs=0.06)


# --- calibration -------------------------------------------------------------


def test_a_logistic_regression_finds_the_numbers_that_made_the_data():
    rng = np.random.default_rng(0)
    log_odds = rng.normal(0, 3, 20_000)
    is_true = rng.random(20_000) < scipy.special.expit(0.5 * log_odds - 1)
    assert calibration.fit_logistic(log_odds, is_true) == pytest.approx((0.5, -1), abs=0.05)
    assert calibration.fit_logistic(log_odds, np.ones(20_000, bool)) == (1, 0)


def test_each_object_is_claimed_by_one_peak():
    log_odds = np.full((9, 9), -9.0)
    log_odds[2, 2], log_odds[2, 4], log_odds[7, 7], log_odds[5, 0] = 3, 5, -1, 2
    peaks = log_odds > -9
    pixel = np.array([2 * 9 + 3, 7 * 9 + 8, 0])  # the last does not hold
    odds, is_object = calibration.judge(log_odds, peaks, pixel, 2, radius=1)
    assert odds.tolist() == [5, 3, 2, -1]
    assert is_object.tolist() == [True, False, False, True]


def test_scaled_logits_are_those_of_the_scaled_network():
    settings = small()
    variables = initialised(settings)
    net = networks.LocationNet(settings.location, networks.Execution())
    params = variables["params"]["location"]
    stats = variables["batch_stats"]["location"]
    x = np.random.default_rng(0).random((1, 8, 8, 1), np.float32)
    before = net.apply({"params": params, "batch_stats": stats}, x)
    scaled = networks.scale_logits(params, 0.5, 3.0)
    after = net.apply({"params": scaled, "batch_stats": stats}, x)
    np.testing.assert_allclose(after, 0.5 * before + 3, rtol=1e-5, atol=1e-5)
