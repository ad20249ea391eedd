import collections
import dataclasses
import functools
import math

import handmade
import jax
import numpy as np
import pytest
import scipy.ndimage
import scipy.special
from conftest import SMALL
from handmade import PAIR, picture

import datasets
import lavae_jax
from configs import baseline_mnist1k
from lavae_jax import (
    api,
    batching,
    checkpoints,
    decomposition,
    inference,
    model_files,
    networks,
    prior,
    tiles,
)
from lavae_jax.checkpoints import CheckpointError
from lavae_jax.model import initialise
from lavae_jax.settings import LocationSettings

IMAGES = np.stack(
    [
        picture((3, 4, True), (10, 12, False), (17, 20, True)),
        picture((0, 0, False), (19, 22, True)),
        picture(),
    ]
)


@pytest.fixture(scope="module")
def model():
    return handmade.model()


@pytest.fixture(scope="module")
def scene(model):
    return model.infer(IMAGES)


def test_a_scene_is_decomposed(scene):
    assert scene.count.tolist() == [3, 2, 0]
    assert scene.location.shape == (3, 10, 2)
    found = {tuple(p) for p in np.asarray(scene.location[0, :3]).tolist()}
    assert found == {(3, 4), (10, 12), (17, 20)}
    assert (scene.location[2] == -1).all()
    assert (scene.location[0, 3:] == -1).all()
    pairs = {
        tuple(p): float(z)
        for p, z in zip(scene.location[0, :3].tolist(), scene.appearance[0, :3, 0], strict=True)
    }
    assert pairs == {(3, 4): PAIR, (10, 12): 0.0, (17, 20): PAIR}


def test_equally_probable_objects_are_in_reading_order(model):
    places = [[9, 2], [3, 15], [15, 1], [3, 4]]
    (found,) = model.detect(picture(*((*place, False) for place in places)))
    assert len(set(found.score)) == 1
    assert found.location.tolist() == [[3, 4], [3, 15], [9, 2], [15, 1]]


def test_a_round_trip_keeps_the_scene(model, scene):
    rendered = np.asarray(model.render(scene))
    np.testing.assert_allclose(rendered, IMAGES, atol=1e-3)
    again = model.infer(rendered.round())
    for before, after in zip(jax.tree.leaves(scene), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(before, after, atol=1e-3)


def object_at(scene, b, location):
    return next(k for k in range(10) if scene.location[b, k].tolist() == list(location))


def test_edits_change_what_they_should_and_nothing_else(model, scene):
    k = object_at(scene, 0, (10, 12))
    other = object_at(scene, 0, (3, 4))
    base = np.asarray(model.render(scene))[0]

    def changed(edited):
        image = np.asarray(model.render(edited))[0]
        return {tuple(p) for p in np.argwhere(np.abs(image - base)[..., 0] > 1e-6).tolist()}

    box = {(r, c) for r in range(8, 13) for c in range(10, 15)}
    assert {(10, 12)} <= changed(scene.remove(k)) <= box
    assert {(10, 13)} <= changed(scene.with_appearance(k, np.array([PAIR, 0.0]))) <= box
    moved = changed(scene.move(k, (12, 3)))
    assert {(10, 12), (12, 3)} <= moved
    assert moved <= box | {(r, c) for r in range(10, 15) for c in range(1, 6)}
    swapped = np.asarray(model.render(scene.swap(k, other)))[0].round()
    np.testing.assert_array_equal(swapped, picture((3, 4, False), (10, 12, True), (17, 20, True)))
    added = np.asarray(model.render(scene.add((1, 15), np.zeros(2, np.float32)))).round()
    np.testing.assert_array_equal(added[2], picture((1, 15, False)))


def test_sprites_are_those_of_the_objects(model, scene):
    sprites = np.asarray(model.sprites(scene)).round()
    assert sprites.shape == (3, 10, 5, 5, 1)
    for k in range(3):
        foreground = [[2, 2, 0]] + ([[2, 3, 0]] if scene.appearance[0, k, 0] == PAIR else [])
        assert np.argwhere(sprites[0, k]).tolist() == foreground
    assert (sprites[0, 3:] == 0).all()


def test_a_posterior_sample_is_the_scene_where_there_is_only_one(model):
    """Single pixels: as many peaks as objects, so all are drawn, in some order."""
    images = np.stack([picture((3, 4, False), (9, 9, False)), picture((0, 23, False))])
    sampled = model.infer(images, key=0)
    assert sampled.count.tolist() == [2, 1]
    np.testing.assert_allclose(np.asarray(model.render(sampled)), images, atol=0.01)
    np.testing.assert_array_equal(model.infer(images, key=0).location, sampled.location)
    orders = {tuple(model.infer(images, key=k).location[0, 0].tolist()) for k in range(12)}
    assert orders == {(3, 4), (9, 9)}


@pytest.mark.parametrize("canvas", [(20, 24), (9, 50), (101, 33)])
def test_canvases_of_any_size_work(model, canvas):
    scene = model.infer(picture((4, 4, True), (8, 20, False), canvas=canvas)[None])
    assert scene.count.tolist() == [2]
    assert np.asarray(model.render(scene)).shape == (1, *canvas, 1)


def test_types_of_images_do_not_matter(model, scene):
    for images in (
        (255 * IMAGES).astype(np.uint8),
        IMAGES.astype(bool),
        IMAGES.astype(np.float64),
        IMAGES[..., 0],
        IMAGES.astype(np.int64).tolist(),
        IMAGES.astype(np.uint8),
        (65_535 * IMAGES).astype(np.uint16),
        np.repeat(IMAGES, 3, axis=-1),
        0.2 + 0.3 * IMAGES,
    ):
        np.testing.assert_array_equal(model.infer(images).location, scene.location)


@pytest.mark.parametrize("image", [IMAGES[0], IMAGES[0, ..., 0], IMAGES[0, ..., 0].tolist()])
def test_one_image_is_one_image(model, scene, image):
    found = model.infer(image)
    assert len(found) == 1
    np.testing.assert_array_equal(found.location, scene.location[:1])
    assert model.render(found).shape == (1, 20, 24, 1)
    assert model.bound(image, num_samples=2).log_p.shape == (1,)


def test_other_settings_keep_the_preprocessing_that_was_set(model):
    """Inverted, the levels are 0.9, 0.5 and 0.3, of which two are above 0.4."""
    changed = model.with_preprocessing(invert=True, threshold=0.4).with_settings(support="pixels")
    assert changed.settings.support == "pixels"
    levels = np.array([[0.1, 0.5, 0.7]])
    assert changed.preprocess(levels).ravel().tolist() == [1, 1, 0]


@pytest.mark.parametrize(("kind", "high"), [(bool, 1), (np.uint8, 1), (np.uint8, 255), (float, 1)])
def test_binary_images_with_dark_objects_are_inverted(kind, high, model):
    binary = np.eye(6)[None, :5]
    seen = model.with_preprocessing(invert=True).preprocess((high * binary).astype(kind))
    np.testing.assert_array_equal(seen[..., 0], 1 - binary)
    np.testing.assert_array_equal(model.preprocess(binary)[..., 0], binary)


def test_implausible_images_cause_a_warning(model):
    with pytest.warns(UserWarning, match=r"99% of the pixels are foreground.*invert=True") as seen:
        model.infer(1 - IMAGES)
    assert [warning.filename for warning in seen] == [__file__]  # the line that has to change
    large = np.kron(IMAGES[..., 0], np.ones((9, 9), np.float32))
    with pytest.warns(UserWarning, match="out of reach of every detected object.*to 5 pixels"):
        model.with_settings(threshold=11.0).infer(large)


@pytest.mark.parametrize("length", [0, 1, 3, 5, 9])
def test_any_number_of_images_in_chunks(model, length):
    images = np.stack([picture((i % 20, i, False)) for i in range(length)] or [picture()])[:length]
    small = api.Model(model.module, model.variables, model.config, batch_size=2)
    scene = small.infer(images)
    assert len(scene) == length
    assert scene.location[:, 0].tolist() == [[i % 20, i] for i in range(length)]
    assert np.asarray(small.render(scene)).shape == (length, 20, 24, 1)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (
            np.zeros((2, 8, 8, 2)),
            ValueError,
            r"shape \(2, 8, 8, 2\); expected \[B, H, W, C\]",
        ),
        (np.zeros(8), ValueError, r"shape \(8,\)"),
        (np.zeros((1, 0, 8)), ValueError, r"shape \(1, 0, 8\)"),
        (np.full((1, 8, 8), 7, np.int32), TypeError, "int32; expected uint8"),
        (np.full((1, 8, 8), 255.0), ValueError, "ranges from 255 to 255"),
        (np.full((1, 8, 8), np.nan), ValueError, "nan"),
    ],
)
def test_bad_images_are_explained(model, images, error, message):
    with pytest.raises(error, match=message):
        model.infer(images)


def test_other_bad_inputs_are_explained(model, scene):
    with pytest.raises(ValueError, match="num_samples=0 must be at least 1"):
        model.bound(IMAGES, num_samples=0)
    with pytest.raises(ValueError, match="2 indices for 3 images; give one for each"):
        model.bound(IMAGES, indices=[0, 1])
    with pytest.raises(TypeError, match="must be a whole number or made by"):
        model.sample("seed", 3)
    with pytest.raises(ValueError, match="num_scenes=-1"):
        model.sample(0, -1)
    with pytest.raises(ValueError, match=r"count=\[11\]: expected whole numbers from 0 to 10"):
        model.sample(0, 3, count=[11])
    wide = dataclasses.replace(scene, appearance=np.zeros((3, 10, 7)))
    with pytest.raises(ValueError, match="have 7 latent dimensions, but this model's have 2"):
        model.render(wide)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.infer(IMAGES, max_objects=2.5), TypeError, "max_objects=2.5 must be a whole"),
        (lambda m: m.infer(IMAGES, max_objects=0), ValueError, "max_objects=0 must be at least 1"),
        (lambda m: m.infer(IMAGES, min_score=float("nan")), ValueError, "min_score=nan"),
        (lambda m: m.infer(IMAGES, key=2**70), ValueError, "more than 64 bits"),
        (lambda m: m.infer(IMAGES, key=1, min_score=0.5), ValueError, "neither max_objects nor"),
        (lambda m: m.infer(np.zeros((2, 2, 4)), key=1), ValueError, "2x4 are too small"),
        (lambda m: m.infer([IMAGES, IMAGES]), ValueError, "a list has one image in each item"),
        (lambda m: m.bound([IMAGES[0], IMAGES[1, :9]]), ValueError, "images differ in size"),
        (lambda m: lavae_jax.analyse(m, IMAGES, max_objects=-1), ValueError, "must be at least 1"),
        (lambda m: lavae_jax.analyse(m, IMAGES, min_score=float("nan")), ValueError, "min_score"),
        (lambda m: m.infer(-IMAGES), ValueError, "ranges from -1 to"),
        (lambda m: m.infer(0.5 - IMAGES), ValueError, "ranges from -0.5 to 0.5"),
        (lambda m: m.infer(-IMAGES.astype(int)), TypeError, "int64; expected uint8"),
        (lambda m: m.sample(0, 6, count=[2.5]), ValueError, "expected whole numbers from 0 to 10"),
        (lambda m: m.sample(0, 6, count=[1.5, 3]), ValueError, "expected whole numbers"),
        (lambda m: m.sample(0, 6, count=[-1]), ValueError, "expected whole numbers"),
        (lambda m: m.sample(0, 6, count=[-1, 2]), ValueError, "expected whole numbers"),
        (lambda m: m.sample(0, 6, canvas=(-64, 64)), ValueError, "canvas height=-64"),
        (lambda m: m.sample(0, 6, canvas=(2, 4)), ValueError, "needs at least 10 pixels"),
        (lambda m: m.sample(0, 6, canvas=64), ValueError, r"canvas=64 must be \(height, width\)"),
        (lambda m: m.bound(IMAGES, num_samples=2.5), TypeError, "num_samples=2.5 must be a whole"),
        (lambda m: m.with_settings(max_objects=20), ValueError, "the support of p"),
        (lambda m: m.with_preprocessing(threshold=float("nan")), ValueError, "threshold=nan must"),
    ],
)
def test_bad_arguments_are_explained(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)


def test_prior_samples_have_the_counts_requested(model):
    scene = model.sample(0, 40, count=[4, 5], canvas=(30, 30))
    assert set(scene.count.tolist()) == {4, 5}
    images = np.asarray(model.render(scene))
    assert images.shape == (40, 30, 30, 1)
    assert set(model.sample(0, 200).count.tolist()) == set(range(11))  # p(n) is uniform here


def test_the_bound_does_not_depend_on_how_images_are_batched(model):
    whole = model.bound(IMAGES, num_samples=7).log_p
    small = api.Model(model.module, model.variables, model.config, batch_size=1)
    np.testing.assert_allclose(whole, small.bound(IMAGES, num_samples=7).log_p, rtol=1e-5)
    part = model.bound(IMAGES[1:], num_samples=7, indices=[1, 2]).log_p
    np.testing.assert_allclose(whole[1:], part, rtol=1e-5)
    assert whole.shape == (3,)
    assert whole[2] == pytest.approx(-np.log(11) - 20 * 24 * 1e-6, rel=1e-4)  # n = 0, all black


def test_models_are_loaded_from_runs_and_checkpoints(tmp_path):
    run = handmade.write_run(tmp_path / "run", "")
    for path in (run, str(run), run / "checkpoints" / "2"):
        assert lavae_jax.load(path).infer(IMAGES).count.tolist() == [3, 2, 0]


def test_a_folder_without_a_model_does_not_hide_shipped_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist1k").mkdir()
    assert lavae_jax.load("mnist1k").folder == (model_files.SHIPPED / "mnist1k").resolve()
    handmade.write_run(tmp_path / "dsprites", "")
    assert lavae_jax.load("dsprites").folder == tmp_path / "dsprites"


def test_what_cannot_be_loaded_is_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a folder nor shipped weights"):
        lavae_jax.load("nothing")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        lavae_jax.load(tmp_path)
    run = handmade.write_run(tmp_path / "run", "")
    (run / "checkpoints" / "2" / "meta.json").unlink()
    with pytest.raises(FileNotFoundError, match="no intact checkpoint"):
        lavae_jax.load(run)
    arrays = handmade.arrays()
    arrays.pop("params.count_logits")
    with pytest.raises(CheckpointError, match="count"):
        model_files.build(handmade.run_config(), arrays)
    (run / "config.json").write_text("")
    with pytest.raises(CheckpointError, match=r"config\.json is not the config of a run"):
        lavae_jax.load(run)
    config = handmade.run_config()
    config.model.colour = 3
    with pytest.raises(CheckpointError, match="LavaeSettings: colour is unknown"):
        model_files.build(config, handmade.arrays())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(value):
    arrays = handmade.arrays()
    arrays["params.decoder.Dense_0.kernel"][0, 0] = value
    with pytest.raises(CheckpointError, match=r"not finite: params\.decoder\.Dense_0\.kernel"):
        model_files.build(handmade.run_config(), arrays)


def test_loading_needs_only_the_model_s_settings():
    config = handmade.run_config()
    config.curriculum.phases = ("unknown",)  # which no training would accept
    del config.curriculum, config.auxiliary, config.batch_size
    assert model_files.build(config, handmade.arrays()).infer(IMAGES).count.tolist() == [3, 2, 0]


def test_an_old_config_without_a_prior_has_the_paper_s_prior(model):
    config = handmade.run_config()
    del config.model.prior
    old = model_files.build(config, handmade.arrays())
    assert old.settings == model.settings
    assert old.settings.prior.kind == "normal"


def test_a_mixture_with_components_for_both_objects_samples_little_else(model):
    """Two narrow components, of which pairs have three quarters, and a share of N(0, I)."""
    share = prior.STANDARD_SHARE
    config, arrays = handmade.run_config(), handmade.arrays()
    config.model.prior = {"kind": "mixture", "components": 2}
    arrays["params.prior.logits"] = np.log([1, 3])
    narrow = [-4.0, -4.0]
    arrays["params.prior.features"] = np.array([[0, 0, *narrow], [PAIR, 0, *narrow]]).T
    mixture = model_files.build(config, arrays)
    scene = mixture.sample(0, 500, count=[1])
    z = np.asarray(scene.appearance[:, 0])
    is_pair = z[:, 0] > PAIR / 2
    assert is_pair.mean() == pytest.approx(0.75, abs=0.06)
    known = np.abs(z - np.where(is_pair[:, None], [PAIR, 0], 0)).max(1) < 1
    assert 0 < np.sum(~known) < 4 * share * len(z)
    foreground = (np.asarray(mixture.render(scene)) > 0.5).sum((1, 2, 3))
    inside = known & (np.asarray(scene.location[:, 0, 1]) < 63)  # where a pair is not cut off
    np.testing.assert_array_equal(foreground[inside], (1 + is_pair)[inside])
    np.testing.assert_array_equal(mixture.infer(IMAGES).appearance, model.infer(IMAGES).appearance)

    mean, deviation = mixture.appearance_moments()
    of_pairs = 0.75 * (1 - share)
    np.testing.assert_allclose(mean, [of_pairs * PAIR, 0], atol=1e-5)
    spread = (1 - share) * np.exp(8 * np.tanh(-0.5)) + share
    expected = [spread + PAIR**2 * of_pairs * (1 - of_pairs), spread]
    np.testing.assert_allclose(np.square(deviation), expected, rtol=1e-4)
    z = mixture.sample_appearances(np.zeros((2, 3, 2)), np.array([[0, 0.2, 0.3], [0.5, 0.9, 1]]))
    np.testing.assert_array_equal(z[..., 0], [[0, 0, PAIR], [PAIR, PAIR, 0]])

    # The KL of a point against a component is that of the component's density there.
    bounds = [m.bound(IMAGES, num_samples=5).terms.kl_appearance for m in (mixture, model)]
    assert (bounds[0][:2] < bounds[1][:2]).all()
    assert bounds[0][2] == bounds[1][2] == 0


def test_the_bound_is_a_pure_function_under_jit_and_measure_is_not(model, scene):
    whole = model.bound(IMAGES, num_samples=3, max_objects=10).log_p
    traced = jax.jit(lambda x: model.bound(x, num_samples=3).log_p)(IMAGES)
    np.testing.assert_allclose(traced, whole, rtol=1e-5)
    with pytest.raises(TypeError, match="outside of jit"):
        jax.jit(model.measure)(scene)


def test_an_image_costs_one_pass_of_each_network(model, monkeypatch):
    passes = collections.Counter()
    in_batches = batching.in_batches

    def counting(function, module, variables, inputs, *args, **kwargs):
        name = getattr(function, "__name__", "partial")
        passes[name] += len(inputs[0]) if len(np.shape(inputs[0])) else 1
        return in_batches(function, module, variables, inputs, *args, **kwargs)

    monkeypatch.setattr(batching, "in_batches", counting)
    images = [IMAGES[0], IMAGES[1, :15], IMAGES[2]]
    scenes = model.infer(images)
    objects = sum(int(scene.count[0]) for scene in scenes)
    assert passes == {"_log_odds_and_peaks": 3, "_appearances": objects}
    passes.clear()
    records = lavae_jax.analyse(model, images)
    assert [len(record["objects"]) for record in records] == [int(s.count[0]) for s in scenes]
    assert passes == {"_log_odds_and_peaks": 3, "_appearances": objects, "_sprites": objects}


def test_methods_are_pure_functions_under_jit_and_grad(model, scene):
    for images in (IMAGES, (255 * IMAGES).astype(np.uint8), IMAGES > 0, IMAGES[..., 0]):
        traced = jax.jit(model.infer)(images)
        np.testing.assert_array_equal(traced.location, scene.location)
        np.testing.assert_allclose(traced.score, scene.score, rtol=1e-4)
        constant = jax.jit(lambda images=images: model.infer(images))()
        np.testing.assert_array_equal(constant.location, scene.location)
    rendered = jax.jit(lambda add: model.render(scene) + add)(1.0)
    np.testing.assert_allclose(rendered, model.render(scene) + 1, atol=1e-6)
    for method in (model.render, model.sprites):
        np.testing.assert_allclose(jax.jit(method)(scene), method(scene), atol=1e-6)

    @jax.jit
    def brightness_right_of_the_first(z):
        edited = scene.with_appearance(0, z)
        row, column = scene.location[0, 0]
        return model.render(edited)[0, row, column + 1, 0]

    z = np.array([0.8, 0.0], np.float32)  # between a pixel (0) and a pair (PAIR)
    slope = jax.grad(brightness_right_of_the_first)(z)
    step = 1e-2
    above, below = (brightness_right_of_the_first(z + np.array([s, 0])) for s in (step, -step))
    np.testing.assert_allclose(slope[0], (above - below) / (2 * step), rtol=1e-2)
    assert slope[0] > 0.1
    assert slope[1] == 0


def test_a_scene_of_another_model_is_refused(model, scene):
    arrays = handmade.arrays()
    arrays["params.decoder.Dense_1.bias"] += 1
    other = model_files.build(handmade.run_config(), arrays)
    for method in (other.render, other.sprites):
        with pytest.raises(ValueError, match="those of another model"):
            method(scene)
    assert other.render(dataclasses.replace(scene, model_fingerprint=None)).shape == IMAGES.shape
    assert model.render(lavae_jax.Scene.from_dict(scene.to_dict())).shape == IMAGES.shape


def test_keys_are_integers_or_jax_keys(model):
    expected = model.sample(3, 4).location
    for key in (np.int64(3), np.array(3), jax.random.key(3)):
        np.testing.assert_array_equal(model.sample(key, 4).location, expected)


def test_a_baseline_reconstructs_samples_and_is_bounded():
    config = baseline_mnist1k.get_config("tiny")
    variables = initialise(model_files.make_module(config), jax.random.key(0))
    model = model_files.build(config, checkpoints.flatten(variables))
    assert isinstance(model, lavae_jax.Baseline)
    assert np.asarray(model.reconstruct(IMAGES)).shape == IMAGES.shape
    assert np.asarray(model.sample(0, 2, canvas=(16, 24))).shape == (2, 16, 24, 1)
    assert np.isfinite(model.bound(IMAGES, num_samples=3).log_p).all()


def test_a_baseline_s_arguments_are_checked():
    config = baseline_mnist1k.get_config("tiny")
    variables = initialise(model_files.make_module(config), jax.random.key(0))
    model = model_files.build(config, checkpoints.flatten(variables))
    with pytest.raises(ValueError, match="num_images=-1 must be at least 0"):
        model.sample(0, -1)
    assert np.asarray(model.sample(0, 1, canvas=[64, 64])).shape == (1, 64, 64, 1)
    with pytest.raises(TypeError, match="max_objects"):
        model.bound(IMAGES, max_objects=3)


# --- preprocessing -----------------------------------------------------------


def digits(seed=0, number=12):
    return datasets.make_builder("multi_mnist/1k", **SMALL).draw(number, seed, (3, 3)).image


@pytest.mark.parametrize(
    "degrade",
    [
        lambda x, rng: x,
        lambda x, rng: np.clip(0.9 * x + rng.normal(25 / 255, 0.03, x.shape), 0, 1),
        lambda x, rng: np.maximum(x, 30 / 255),
        lambda x, rng: 0.4 * x,
        lambda x, rng: scipy.ndimage.gaussian_filter(x, (0, 1, 1, 0)),
    ],
    ids=["binary", "noise", "background", "dim", "blurred"],
)
def test_a_trained_model_counts_digits_however_they_were_photographed(degrade):
    model = lavae_jax.load("mnist1k")
    images = degrade(digits() / 255, np.random.default_rng(0)).astype(np.float32)
    count = np.asarray(model.infer(images).count)
    assert (count == 3).sum() >= 11
    records = lavae_jax.analyse(model, list(np.rint(255 * images).astype(np.uint8)))
    assert [record["count"] for record in records] == count.tolist()


def test_one_image_is_one_record(model):
    for image in (IMAGES[0], IMAGES[0, ..., 0], np.repeat(IMAGES[0], 3, axis=-1), IMAGES[:1]):
        (record,) = lavae_jax.analyse(model, image)
        assert record["count"] == 3


def test_max_objects_of_analyse_does_not_change_the_bound(model):
    all_objects, one_object = (
        lavae_jax.analyse(model, IMAGES, num_samples=3, max_objects=n)[0]["log_p"]
        for n in (math.inf, 1)
    )
    assert all_objects == pytest.approx(one_object, rel=1e-5)


def test_the_bound_of_analyse_is_that_of_an_image_s_index_whatever_can_be_read_before(model):
    unreadable = np.full((20, 24), 7.0)
    _, record = lavae_jax.analyse(model, [unreadable, IMAGES[0]], num_samples=1)
    bounds = [model.bound(IMAGES[:1], 1, indices=[i]).log_p[0] for i in (0, 1)]
    assert abs(bounds[1] - bounds[0]) > 1
    assert record["log_p"] == pytest.approx(bounds[1], rel=1e-4)


def test_images_have_a_bound_if_their_count_is_in_the_support_of_p_n(model):
    places = [(row, column, False) for row in range(1, 20, 5) for column in range(1, 24, 5)]
    images = [picture(*places[:number]) for number in (0, 1, 10, 11)]
    records = lavae_jax.analyse(model, np.stack(images), num_samples=2)
    assert [record["count"] for record in records] == [0, 1, 10, 11]
    assert [record["log_p"] is None for record in records] == [False, False, False, True]


def test_each_image_of_a_list_has_its_own_type_and_random_numbers(model):
    bright = (IMAGES[0] * 255).astype(np.uint8), (IMAGES[1] * 65_535).astype(np.uint16)
    assert model.infer(list(bright)).count.tolist() == [3, 2]
    single = [picture((3, 4, False), (9, 9, False)), picture((3, 4, False), (9, 9, False))[:15]]
    orders = {
        tuple(tuple(scene.location[0, 0].tolist()) for scene in model.infer(single, key=k))
        for k in range(12)
    }
    assert len(orders) > 2  # the two images do not always draw the same object first


@pytest.mark.parametrize("side", [64, 256])
@pytest.mark.parametrize(
    "noise",
    [lambda rng, s: rng.normal(0, 0.03, s), lambda rng, s: rng.normal(30, 0.45, s) / 255],
    ids=["clipped", "small"],
)
def test_noise_is_background_however_few_objects_there_are(noise, side):
    rng = np.random.default_rng(0)
    image = noise(rng, (side, side))
    truth = np.zeros((side, side), bool)
    for row, column in ((5, 8), (30, 40), (50, 12)):
        truth[row : row + 9, column : column + 9] = True
    image[truth] += 0.7
    seen = lavae_jax.Preprocessing(1)(np.rint(255 * image.clip(0, 1)).astype(np.uint8))
    np.testing.assert_array_equal(seen[..., 0], truth)


def test_every_channel_has_a_background_of_its_own():
    image = np.full((40, 40, 3), (30, 30, 120), np.uint8)
    image[5:12, 5:12, 0] = 250
    seen = lavae_jax.Preprocessing(3)(image)
    assert seen[..., 0].sum() == 49
    assert seen[..., 1:].sum() == 0


def test_an_image_without_objects_has_no_foreground():
    rng = np.random.default_rng(0)
    noise = rng.normal(0.4, 0.05, (4, 64, 64, 1)).clip(0, 1)
    preprocessing = lavae_jax.Preprocessing(1)
    for image in (*noise, rng.random((64, 64, 1)), np.full((64, 64), 0.3)):
        assert preprocessing(image).sum() == 0
    noise[0, 20:30, 20:30] = 0.9
    np.testing.assert_array_equal(
        np.argwhere(preprocessing(noise[0]))[[0, -1], :2], [[20, 20], [29, 29]]
    )


# --- sizes -------------------------------------------------------------------


def test_location_probabilities_of_large_images_are_those_of_each_pixel(monkeypatch):
    """Logits are 10 where a pixel is bright, and 3 more where the one above and to the left is."""
    arrays = handmade.arrays()
    arrays["params.location.Conv_0.kernel"][0, 0] = 3.0
    model = model_files.build(handmade.run_config(), arrays)
    monkeypatch.setattr(tiles, "LARGE", 1_000)
    monkeypatch.setattr(tiles, "SIDE", 32)
    images = np.random.default_rng(0).random((2, 60, 100)) < 0.3
    before = np.pad(images, ((0, 0), (1, 0), (1, 0)))[:, :-1, :-1]
    expected = scipy.special.expit(10 * images + 3 * before - model.settings.threshold)
    np.testing.assert_allclose(model.location_probabilities(images), expected, atol=1e-4)


def test_the_sample_of_an_image_in_a_list_depends_on_its_index(model):
    """It is the sample that the image has at that index in a batch of images of its size."""
    model = api.Model(model.module, model.variables, model.config, batch_size=1)
    two = picture((3, 4, False), (9, 9, False))
    images = [two, picture((1, 1, False))[:15], two[:15], two]
    first_rows = set()
    for key in range(8):
        scenes = model.infer(images, key=key)
        assert [scene.canvas for scene in scenes] == [(20, 24), (15, 24), (15, 24), (20, 24)]
        assert [scene.count.tolist() for scene in scenes] == [[2], [1], [2], [2]]
        whole, cut = (model.infer(np.stack([image] * 4), key=key) for image in (two, two[:15]))
        for place, batch in ((0, whole), (2, cut), (3, whole)):
            ours, theirs = scenes[place], batch[place : place + 1]
            np.testing.assert_array_equal(ours.location, theirs.location)
            np.testing.assert_array_equal(ours.appearance, theirs.appearance)
        assert scenes[1].location[0, 0].tolist() == [1, 1]
        first_rows.add(tuple(scenes[place].location[0, 0, 0].item() for place in (0, 2, 3)))
    assert len(first_rows) > 2


def test_a_scene_has_no_more_slots_than_pixels(model):
    """Of 8 pixels, where p(n) has up to 10 objects."""
    image = picture((1, 3, False), canvas=(2, 4))
    for max_objects in (None, 9, math.inf):
        scene = model.infer(image, max_objects=max_objects)
        assert scene.location.shape == (1, 8, 2)
        assert scene.appearance.shape == (1, 8, 2)
        assert scene.count.tolist() == [1]
    np.testing.assert_allclose(np.asarray(model.render(scene))[0], image, atol=1e-3)
    with pytest.raises(ValueError, match="2x4 are too small: the model needs at least 10 pixels"):
        model.bound(image)
    with pytest.raises(ValueError, match="2x4 are too small: the model needs at least 10 pixels"):
        jax.jit(model.infer)(image)


@pytest.mark.parametrize("checkpoint", ["mnist1k", "dsprites"])
def test_padding_changes_nothing(checkpoint):
    """Odd sizes, objects that are cut by the border, and rotations."""
    model = lavae_jax.load(checkpoint)
    name = model.config.dataset.name
    drawn = datasets.make_builder(name, **SMALL, canvas=110).draw(4, 3, (3, 3)).image
    for rows, columns in ((64, 64), (57, 71), (100, 100), (33, 90)):
        cut = drawn[:, 7 : 7 + rows, 3 : 3 + columns]
        for images in (cut, cut[:, ::-1, ::-1]):
            x = model.preprocess(images)
            size = np.full((len(x), 2), x.shape[1:3], np.int32)
            padded = np.pad(x, ((0, 0), (0, -rows % 32), (0, -columns % 32), (0, 0)))
            expected = model._run(decomposition.log_odds, x)
            logits = model._run(decomposition.log_odds, padded, size)[:, :rows, :columns]
            np.testing.assert_allclose(logits, expected, atol=2e-4)
            inside = inference_count(model, x)
            found = model.detect(images)
            assert [len(one.location) for one in found] == inside
            for one in found:
                assert (one.location >= 0).all()
                assert (one.location < [rows, columns]).all()


def inference_count(model, x):
    """By the form that training uses."""
    scene = model._run(functools.partial(inference.infer, max_objects=20), x)
    return np.asarray(scene.count).tolist()


def test_a_blurred_location_network_is_not_changed_by_padding_either():
    settings = LocationSettings(width=4, blocks=1, head_width=4, space_to_depth=4, blur_logits=True)
    network = networks.LocationNet(settings, networks.Execution())
    x = jax.random.uniform(jax.random.key(0), (2, 21, 30, 1))
    variables = network.init(jax.random.key(1), x)
    variables = jax.tree.map(lambda a: a + 0.3, variables)  # biases that are not 0
    padded = np.pad(x, ((0, 0), (0, 11), (0, 2), (0, 0)))
    size = np.full((2, 2), (21, 30))
    logits = network.apply(variables, padded, size)[:, :21, :30]
    np.testing.assert_allclose(logits, network.apply(variables, x), rtol=1e-4, atol=1e-4)
