"""The map of the auxiliary VAE's KL, the loss that makes peaks, and the phases."""

import itertools

import flax
import jax
import jax.numpy as jnp
import micro
import numpy as np
import pytest
from small_models import auxiliary, compiled, initialised, module_of

from configs import ablation, mnist1k
from lavae_jax import model, vae, warmup
from lavae_jax.training import tasks

AUXILIARY = auxiliary(width=4, latents=3, space_to_depth=6)


@pytest.fixture(scope="module")
def mean_map():
    apply = compiled(warmup.mean_kl_map, AUXILIARY, static=("shifts",))
    return lambda x, keys, shifts: apply(initialised(AUXILIARY), x, keys, shifts=shifts)


def blob(row, column, canvas=108):
    image = np.zeros((1, canvas, canvas, 1), np.float32)
    image[0, row : row + 5, column : column + 3] = 1.0
    return image


@pytest.mark.parametrize(("space_to_depth", "cell"), [(1, 6), (2, 6), (6, 6), (2, 2), (13, 13)])
def test_every_stem_gives_one_latent_for_a_cell_of_pixels(space_to_depth, cell):
    module = module_of(auxiliary(width=4, latents=3, space_to_depth=space_to_depth, cell=cell))
    x = np.zeros((2, 4 * cell, 4 * cell - 1, 1), np.float32)

    def latents_and_image(key):
        variables = model.initialise(module, key)
        elbo = model.bind(vae.elbo, module)(variables, x, jax.random.split(key, 2))
        return model.bind(vae.kl, module)(variables, x), elbo

    kl, elbo = jax.eval_shape(latents_and_image, jax.random.key(0))
    assert kl.shape == elbo.kl.shape == (2, 4, 4)


def test_other_stems_are_refused():
    with pytest.raises(ValueError, match="space_to_depth=3 must be 1 or 2 or 6"):
        auxiliary(space_to_depth=3)
    with pytest.raises(ValueError, match="space_to_depth=2 must be 5"):
        auxiliary(space_to_depth=2, cell=5)


def test_the_mean_over_all_shifts_moves_with_the_image(mean_map):
    """At one shift the map sticks to the grid; over all of them, an object is an object."""
    keys = jax.random.split(jax.random.key(0), 1)
    inner = slice(42, 66)
    here, there = (np.asarray(mean_map(blob(r, c), keys, 6))[0] for r, c in ((50, 50), (51, 52)))
    moved = np.roll(here, (1, 2), (0, 1))
    np.testing.assert_allclose(there[inner, inner], moved[inner, inner], rtol=1e-4)
    one, other = (np.asarray(mean_map(blob(r, c), keys, 1))[0] for r, c in ((50, 50), (51, 52)))
    assert np.abs(other - np.roll(one, (1, 2), (0, 1)))[inner, inner].max() > 0.01 * one.max()


def test_the_shifts_are_evenly_spaced_from_a_random_first_one_that_each_key_draws(monkeypatch):
    """On cells of 6 pixels: from one of 3 x 3 on, 3 apart."""
    shifts = []
    monkeypatch.setattr(warmup, "kl_map_at", lambda vae, x, shift: shifts.append(shift) or shift)
    keys = jax.random.split(jax.random.key(0), 400)
    mean = np.asarray(warmup.mean_kl_map(module_of(AUXILIARY), None, keys, 2))
    first = np.asarray(shifts[0])
    drawn, times = np.unique(first, axis=0, return_counts=True)
    assert drawn.tolist() == [list(pair) for pair in np.ndindex(3, 3)]
    np.testing.assert_allclose(times / 400, 1 / 9, atol=0.05)
    steps = [(np.asarray(shift) - first).tolist() for shift in shifts]
    assert steps == [[[row, column]] * 400 for row in (0, 3) for column in (0, 3)]
    np.testing.assert_allclose(mean, first + 1.5)


def test_the_map_at_one_random_shift_depends_on_the_key(mean_map):
    maps = [mean_map(blob(50, 50), jax.random.split(jax.random.key(i), 1), 1) for i in range(4)]
    again = mean_map(blob(50, 50), jax.random.split(jax.random.key(0), 1), 1)
    np.testing.assert_array_equal(again, maps[0])
    assert max(np.abs(map_ - maps[0]).max() for map_ in maps[1:]) > 0.01 * np.max(maps[0])


def test_the_distance_pulls_the_map_to_the_target_and_never_the_target_to_the_map():
    map_ = jnp.array([[[1.0, 2.0]], [[0.0, -1.0]]])
    target = jnp.array([[[0.0, 4.0]], [[0.5, -1.0]]])
    value, (of_map, of_target) = jax.value_and_grad(warmup.distance, argnums=(0, 1))(map_, target)
    assert value == (1 + 4 + 0.25 + 0) / 2
    assert of_map.tolist() == [[[1.0, -2.0]], [[-0.5, 0.0]]]  # 2 (map - target) / 2 images
    assert not of_target.any()


def centre_of_mass(image, row, column, radius):
    """The pixel nearest to the centre of mass of what lies around a pixel, by counting."""
    foreground = [
        (r, c)
        for r, c in np.argwhere(image)
        if abs(r - row) <= radius and abs(c - column) <= radius
    ]
    return (
        tuple(int(np.floor(m + 0.5)) for m in np.mean(foreground, axis=0))
        if foreground
        else (row, column)
    )


@pytest.mark.parametrize("times", [0, 1, 3])
def test_peaks_move_to_the_centre_of_mass_around_them(times):
    rng = np.random.default_rng(0)
    x = (rng.random((4, 20, 24, 1)) < 0.05).astype(np.float32)
    marked = np.zeros((4, 20, 24), bool)
    expected = np.zeros_like(marked)
    for image in range(4):
        for pixel in rng.integers((20, 24), size=(3, 2)):
            marked[(image, *pixel)] = True
            for _ in range(times):
                pixel = centre_of_mass(x[image, ..., 0], *pixel, 3)
            expected[(image, *pixel)] = True
    np.testing.assert_array_equal(warmup.centre(marked, x, 3, times), expected)


def test_a_centred_peak_is_the_same_pixel_of_an_object_everywhere():
    """Even of one whose centre of mass lies half-way between pixels."""
    for row, column in ((10, 10), (11, 13), (21, 22)):
        x = np.zeros((1, 40, 40, 3), np.float32)
        x[0, row : row + 6, column : column + 5, 1] = 1.0
        marked = np.zeros((1, 40, 40), bool)
        marked[0, row + 1, column + 4] = True
        centred = np.argwhere(warmup.centre(marked, x, 7, 2))
        assert centred.tolist() == [[0, row + 3, column + 2]]


def test_augmented_images_have_all_symmetries_in_equal_shares():
    image = np.arange(9.0).reshape(3, 3, 1)
    x = np.repeat(image[None], 4_000, axis=0)
    out = np.asarray(warmup.augment(x, jax.random.split(jax.random.key(0), len(x)), 0.75))
    ways = [np.rot90(i, k) for i in (image, image.swapaxes(0, 1)) for k in range(4)]
    found = [np.mean([np.array_equal(way, o) for o in out]) for way in ways]
    expected = [0.25 + 0.75 / 8] + [0.75 / 8] * 7
    np.testing.assert_allclose(found, expected, atol=0.03)


@pytest.mark.parametrize("shape", [(3, 3, 1), (2, 3, 1)])
def test_a_share_of_0_turns_no_image(shape):
    x = np.arange(200.0 * np.prod(shape)).reshape(200, *shape)
    np.testing.assert_array_equal(
        warmup.augment(x, jax.random.split(jax.random.key(0), len(x)), 0.0), x
    )


def test_a_share_of_1_turns_every_image_in_one_of_8_ways_that_are_equally_likely():
    image = np.arange(9.0).reshape(3, 3, 1)
    x = np.repeat(image[None], 1_000, axis=0)
    out = np.asarray(warmup.augment(x, jax.random.split(jax.random.key(0), len(x)), 1.0))
    found, times = np.unique(out.reshape(-1, 9), axis=0, return_counts=True)
    ways = [np.rot90(i, k).ravel() for i in (image, image.swapaxes(0, 1)) for k in range(4)]
    assert sorted(found.tolist()) == sorted(way.tolist() for way in ways)
    np.testing.assert_allclose(times / 1_000, 1 / 8, atol=0.04)


def test_the_share_of_augmented_images_is_that_of_the_config(monkeypatch):
    config = micro.config(recipe="cpu", steps=2, **{"curriculum.peaks.augmented_share": 0.375})
    task = tasks.make(config)
    module, shares = task.module((), None), []
    monkeypatch.setattr(warmup, "augment", lambda x, keys, share: shares.append(share) or x)
    x, keys = jnp.zeros((2, 24, 24, 1)), jax.random.split(jax.random.key(1), 2)

    def loss(key):
        variables = model.initialise(module, key)
        return model.bind(task.phases[1].loss, module)(variables, x, keys, 0)

    jax.eval_shape(loss, jax.random.key(0))
    assert shares == [0.375]


def test_oblong_images_keep_their_shape_when_augmented():
    image = np.arange(6.0).reshape(2, 3, 1)
    x = np.repeat(image[None], 200, axis=0)
    out = np.asarray(warmup.augment(x, jax.random.split(jax.random.key(0), len(x)), 1.0))
    ways = [image, image[::-1], image[:, ::-1], image[::-1, ::-1]]
    assert all(any(np.array_equal(way, o) for o in out) for way in ways)
    assert all(any(np.array_equal(way, o) for way in ways) for o in out)


def test_detection_loss_is_the_weighted_cross_entropy():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (2, 4, 5))
    peaks = rng.random((2, 4, 5)) < 0.2
    p = 1 / (1 + np.exp(-logits))
    expected = np.where(peaks, -7.0 * np.log(p), -np.log(1 - p)).sum((1, 2)).mean()
    value = warmup.detection_loss(jnp.asarray(logits), peaks, 7.0, 0.0)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_ignored_pixels_cost_nothing_wherever_their_logits_are():
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 3, (2, 4, 5))
    peaks, ignored = rng.random((2, 2, 4, 5)) < 0.2
    p = 1 / (1 + np.exp(-logits))
    each = np.where(peaks, -7.0 * np.log(p), -np.log(1 - p))
    value = warmup.detection_loss(jnp.asarray(logits), peaks, 7.0, 0.0, ignored)
    np.testing.assert_allclose(value, np.where(ignored, 0, each).sum((1, 2)).mean(), rtol=1e-5)


def test_detection_loss_tells_a_marked_pixel_from_those_around_it():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (1, 5, 6))
    peaks = np.zeros((1, 5, 6), bool)
    peaks[0, 0, 5] = peaks[0, 3, 2] = True
    which = [logits[0, :2, 4:], logits[0, 2:5, 1:4]]
    expected = sum(np.logaddexp.reduce(around.ravel()) for around in which) - logits[peaks].sum()

    def loss(logits, localisation_weight):
        return warmup.detection_loss(jnp.asarray(logits), peaks, 7.0, localisation_weight)

    np.testing.assert_allclose(loss(logits, 3.0) - loss(logits, 0.0), 3 * expected, rtol=1e-4)
    assert np.isfinite(jax.grad(loss)(jnp.asarray(logits), 3.0)).all()


def test_the_threshold_stands_for_a_small_probability():
    """h_loc is 0 everywhere, and so is the threshold; nothing is marked."""
    config = micro.config(recipe="cpu", steps=2, **{"model.threshold": 0.0})
    config.curriculum.peaks.threshold, config.model.min_object_probability = 1e9, 0.2
    task = tasks.make(config)
    module = task.module((), None)
    variables = model.initialise(module, jax.random.key(0))
    variables["params"]["lavae"]["location"] = jax.tree.map(
        jnp.zeros_like, variables["params"]["lavae"]["location"]
    )
    x, keys = jnp.zeros((2, 24, 24, 1)), jax.random.split(jax.random.key(1), 2)
    loss, _ = model.bind(task.phases[1].loss, module)(variables, x, keys, 0)
    np.testing.assert_allclose(loss, -24 * 24 * np.log(1 - 0.2), rtol=1e-5)


def test_phases_follow_each_other_and_train_their_own_parameters():
    config = mnist1k.get_config("cpu")
    config.curriculum.auxiliary.steps, config.curriculum.peaks.steps = 3, 4
    task = tasks.make(config)
    names = [task.phase_after(step).name for step in (0, 2, 3, 6, 7, 999)]
    assert names == ["auxiliary"] * 2 + ["peaks"] * 2 + ["appearance"] * 2
    moving = {}
    for step in range(12):
        phase = task.phase_after(step)
        for part, rate in phase.learning_rates.items():
            assert rate(step - task.start_of(phase)) > 0
            moving.setdefault(part, []).append(step)
    assert moving["auxiliary"] == [0, 1, 2]
    assert moving["lavae.location"] == [3, 4, 5, 6]
    for part in ("lavae.appearance", "lavae.decoder", "lavae.count_logits"):
        assert moving[part] == [7, 8, 9, 10, 11]
    assert len(moving) == 5
    _, peaks, appearance = task.phases
    assert [task.start_of(phase) for phase in task.phases] == [0, 3, 7]
    assert peaks.learning_rates["lavae.location"](0) == pytest.approx(6e-3)
    assert peaks.learning_rates["lavae.location"](4) == pytest.approx(0)
    assert appearance.learning_rates["lavae.decoder"](0) == pytest.approx(1e-2)
    assert task.num_steps == 3 + 4 + 54_000


def changed_fields(*configs):
    """Between each config and the next."""
    flat = [flax.traverse_util.flatten_dict(c.to_dict(), sep=".") for c in configs]
    return [
        {field for field in {*one, *other} if one.get(field) != other.get(field)}
        - {"name", "recipe"}
        for one, other in itertools.pairwise(flat)
    ]


def test_the_recipes_of_the_ablation_are_one_change_apart():
    configs = [ablation.get_config(name) for name in ("frozen", "peaks")]
    changes = changed_fields(*configs, mnist1k.get_config("cpu"))
    assert changes == [{"model.support"}, {"curriculum.appearance.steps"}]


def test_the_ablations_of_thin_are_one_change_apart():
    names = ("thin_described", "thin_exclusion", "thin_gamma", "thin_peaks")
    configs = [ablation.get_config(name) for name in names]
    changes = changed_fields(*configs, mnist1k.get_config("thin"))
    assert changes[0] == {"model.exclusion_radius"}
    assert changes[1] == {"model.gamma", "model.threshold"}
    assert changes[2] == {"model.peak_radius"}
    assert {field.split(".")[-1] for field in changes[3]} == {
        "steps",
        "anneal_steps",
        "decay_steps",
    }
    letter = mnist1k.get_config("described").model
    described = configs[0].model
    for name in ("gamma", "threshold", "peak_radius"):
        assert described[name] == letter[name]
    assert described.exclusion_radius == 0


def test_described_differs_from_the_paper_only_in_sizes_rates_and_lengths():
    letter = mnist1k.get_config("described")
    (changes,) = changed_fields(letter, ablation.get_config("described"))
    networks = {
        f for f in changes if f.split(".")[1:2] in (["location"], ["appearance"], ["decoder"])
    }
    lengths = {f for f in changes if f.endswith(("steps", "learning_rate", "schedule"))}
    sizes = {"batch_size", "model.peak_radius", "auxiliary.space_to_depth"}
    assert changes == networks | lengths | sizes | {"budget.slots", "budget.objects_per_image"}
    (changes,) = changed_fields(ablation.get_config("described"), mnist1k.get_config("joint"))
    settings = {f for f in changes if f.startswith("model.")}
    names = {"gamma", "threshold", "peak_radius", "exclusion_radius", "location.blur_logits"}
    assert settings == {f"model.{name}" for name in names}


def test_the_location_network_is_frozen_after_its_phase():
    *_, appearance = tasks.make(mnist1k.get_config("cpu")).phases
    assert "lavae.location" not in appearance.learning_rates


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curriculum.phases": ("cold",)}, r"'cold' is unknown or repeated; expected each of"),
        ({"curriculum.phases": ("peaks", "peaks")}, "'peaks' is unknown or repeated"),
        ({"curriculum.peaks.shifts": 7}, r"curriculum\.peaks\.shifts=7 must be from 1 to 6"),
        (
            {"model.min_object_probability": 0.0},
            r"min_object_probability=0\.0 must be a probability",
        ),
    ],
)
def test_settings_that_would_train_nothing_or_the_wrong_thing_are_refused(change, message):
    config = mnist1k.get_config("cpu")
    config.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match=message):
        tasks.make(config)
