"""Second detections of one object are dropped where the ELBO is higher without them.

Expected values come from all subsets of the detections, rendered by the model itself. Every
foreground pixel is a peak of the handmade model's location network, both pixels of a pair too.
"""

import dataclasses
import itertools

import handmade
import jax.numpy as jnp
import numpy as np
import pytest

from lavae_jax import bernoulli, decomposition, duplicates, generative
from lavae_jax.scene import Scene

CANVAS = (20, 24)


@pytest.fixture(scope="module")
def model():
    return handmade.model().with_settings(
        peak_radius=0, resolve_radius=2, composition="over", support="peaks"
    )


def elbo(model, x, one, kl, subset):
    """Of detections `subset`, without log p(n)."""
    location, z = one.location[subset], kl.mean[subset]
    scene = Scene(np.array([len(subset)]), location[None], z[None], CANVAS)
    mean = np.asarray(model.render(scene), np.float64)[0]
    log_likelihood = np.log(np.where(x > 0, mean, 1 - mean)).sum()
    return log_likelihood - kl.kl[subset].sum() - len(subset) * np.log(x.size)


def best_subset(model, x):
    """The subset of the detections with the highest ELBO; those without close ones are in all."""
    (one,) = model.with_settings(resolve_radius=0).decompose(x[None])[0]
    (kl,) = decomposition.describe(model._run, model.settings, x[None], [one])
    near = np.abs(one.location[:, None] - one.location[None]).max(-1) <= 2
    doubtful = np.flatnonzero(near.sum(1) > 1)
    always = np.flatnonzero(near.sum(1) == 1)
    subsets = [
        np.sort(np.concatenate([always, some])).astype(int)
        for number in range(1, len(doubtful) + 1)
        for some in itertools.combinations(doubtful, number)
    ]
    best = max(subsets, key=lambda subset: elbo(model, x, one, kl, subset)) if subsets else always
    return {tuple(at) for at in one.location[best].tolist()}


@pytest.mark.parametrize(
    ("things", "count"),
    [
        ([(5, 5, True)], 1),  # two peaks of one pair
        ([(5, 5, False), (6, 6, False)], 2),  # two objects, diagonal neighbours
        ([(5, 5, True), (7, 6, False)], 2),  # a pair, and a pixel near both of its peaks
        ([(0, 0, True), (19, 22, True)], 2),  # at the border
        ([(5, 5, True), (8, 8, True), (5, 15, False)], 3),
        ([(3, 3, False)], 1),
        ([], 0),
    ],
)
def test_the_detections_with_the_highest_elbo_are_kept(model, things, count):
    x = handmade.picture(*things, canvas=CANVAS)
    (kept,), (z,) = model.decompose(x[None])
    assert len(z) == kept.num_detected == len(kept.location) == count
    assert {tuple(at) for at in kept.location.tolist()} == best_subset(model, x)


def test_every_code_path_drops_the_same_duplicates(model):
    images = np.stack(
        [
            handmade.picture(*things, canvas=CANVAS)
            for things in ([(5, 5, True)], [(9, 3, True)] * 2)
        ]
    )
    assert model.with_settings(resolve_radius=0).infer(images).count.tolist() == [2, 2]
    assert model.infer(images).count.tolist() == [1, 1]
    assert model.infer(list(images))[1].count.tolist() == [1]
    log_p_count = np.asarray(
        generative.log_prior_count(model.module.bind(model.variables), jnp.array([1]))
    )
    terms = model.bound(images, num_samples=2).terms
    np.testing.assert_allclose(terms.kl_count, -np.repeat(log_p_count, 2), rtol=1e-6)
    # One object, at one of D pixels, whose location q knows.
    np.testing.assert_allclose(terms.kl_location, np.log(20 * 24), rtol=1e-5)


def test_the_limit_applies_after_duplicates_are_dropped(model):
    x = handmade.picture((5, 5, True), (12, 12, True), canvas=CANVAS)[None]
    (kept,), (z,) = model.decompose(x, max_objects=2)
    assert len(kept.location) == len(z) == 2
    (kept,), (z,) = model.decompose(x, max_objects=1)
    assert len(kept.location) == len(z) == 1


def test_a_bound_without_duplicates_is_that_of_the_location_network(model):
    images = handmade.picture((5, 5, False), (12, 12, False), canvas=CANVAS)[None]
    expected = model.with_settings(resolve_radius=0).bound(images, num_samples=3)
    found = model.bound(images, num_samples=3)
    np.testing.assert_allclose(found.log_p, expected.log_p, rtol=1e-5)


def test_the_gain_of_a_sprite_is_the_change_of_the_likelihood(model):
    rng = np.random.default_rng(0)
    for composition in ("sum", "over"):
        settings = dataclasses.replace(model.settings, composition=composition)
        image = rng.integers(0, 2, (9, 9, 1)).astype(np.float32)
        location = np.array([[0, 0], [2, 1], [8, 8]])
        sprites = rng.uniform(0, 0.3, (3, 5, 5, 1)).astype(np.float32)
        scene = duplicates._drawn(image, location, sprites)
        for k in range(3):
            pixels = duplicates._with_and_without(settings, scene, np.arange(3), k)
            gain = duplicates._log_ratio(
                model.module.bind(model.variables), *(a[None] for a in pixels)
            )
            expected = [
                bernoulli.sum_pixels(
                    bernoulli.log_prob(image, generative_numpy(sprites, location, of, composition))
                )
                for of in (range(3), [j for j in range(3) if j != k])
            ]
            np.testing.assert_allclose(gain[0], expected[0] - expected[1], rtol=1e-4, atol=1e-4)


def generative_numpy(sprites, location, indices, composition):
    """λ on a canvas of 9x9, pixel by pixel."""
    total = np.zeros((9, 9, 1), np.float32)
    for i in indices:
        for row, column in itertools.product(range(9), range(9)):
            at = np.array([row, column]) - location[i] + 2
            if (at >= 0).all() and (at < 5).all():
                front, behind = sprites[i][tuple(at)], total[row, column]
                total[row, column] = front + behind * (1 - front if composition == "over" else 1)
    return total


def test_a_detection_costs_its_appearance_and_log_d_nats_for_its_location(model):
    x = handmade.picture((5, 5, True), canvas=CANVAS)
    detected = model.with_settings(resolve_radius=0).detect(x[None])
    described = decomposition.describe(model._run, model.settings, x[None], detected)
    for share, count in ((0.9, 1), (1.1, 2)):

        def run(function, *inputs, share=share, **kwargs):
            if function is duplicates._log_ratio:
                return described[0].kl + share * np.log(x.size)
            return model._run(function, *inputs, **kwargs)

        (kept,), _ = duplicates.drop(run, model.settings, [x], detected, described)
        assert len(kept.location) == count


def test_the_cost_of_an_appearance_is_its_kl(model):
    x = handmade.picture((5, 5, True), canvas=CANVAS)
    (one,) = model.with_settings(resolve_radius=0).detect(x[None])
    (described,) = decomposition.describe(model._run, model.settings, x[None], [one])
    log_variance = 8 * np.tanh(-100 / 8)
    variance_part = np.exp(log_variance) - 1 - log_variance
    pair = {tuple(at): kl for at, kl in zip(one.location.tolist(), described.kl, strict=True)}
    np.testing.assert_allclose(pair[5, 5], (handmade.PAIR**2 + 2 * variance_part) / 2, rtol=1e-5)
    np.testing.assert_allclose(pair[5, 6], variance_part, rtol=1e-5)
