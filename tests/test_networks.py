import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_models
from small_models import auxiliary, baseline, compiled, initialised, module_of, paper, small

from lavae_jax import generative, inference, model, networks, packing, vae
from lavae_jax.locations import Locations
from lavae_jax.settings import AppearanceSettings, DecoderSettings


def keys(seed, n):
    return jax.random.split(jax.random.key(seed), n)


def apply(function, settings, *args):
    return compiled(function, settings)(initialised(settings), *args)


def num_params(params):
    return sum(p.size for p in jax.tree.leaves(params))


def shapes_of(settings):
    module = module_of(settings)
    return jax.eval_shape(lambda: model.initialise(module, jax.random.key(0)))["params"]


def latents_of(settings, canvas):
    module, images = module_of(settings), jnp.zeros((1, *canvas, settings.channels))
    encode = model.bind(lambda module: module.encode(images), module)
    return jax.eval_shape(encode, initialised(settings)).mean.shape


@pytest.mark.parametrize("name", ["mnist1k", "dsprites"])
def test_lavae_has_the_paper_s_size(name):
    """About 500k parameters, split almost evenly in three."""
    params = shapes_of(paper(name))
    sizes = [num_params(params[name]) for name in ("location", "appearance", "decoder")]
    assert 480e3 < sum(sizes) < 520e3
    for size in sizes:
        assert 0.31 < size / sum(sizes) < 0.36


@pytest.mark.parametrize("channels", [1, 3])
def test_the_baseline_has_about_a_million_parameters_and_1024_latents(channels):
    settings = baseline(channels)
    assert 0.9e6 < num_params(shapes_of(settings)) < 1.1e6
    assert latents_of(settings, (64, 64)) == (1, 8, 8, 16)


@pytest.fixture
def x():
    return (jax.random.uniform(jax.random.key(9), (2, 20, 24, 1)) < 0.3).astype(jnp.float32)


@pytest.mark.parametrize("network", ["residual", "dense"])
def test_appearance_on_windows_is_the_map_at_the_locations(network, x):
    """At hard locations, on the border and in the corners as inside."""
    pixels = 20 * 24
    corners = [0, 23, pixels - 24, pixels - 1]
    index = jnp.array([corners, [5, 30, 250, 311]])
    where = Locations.hard(index)
    objects = packing.pack(jnp.array([4, 3]), capacity=9)
    results = []
    for computed_on in ("map", "windows"):
        q = apply(inference.appearance, small(network, computed_on), x, where, objects)
        results.append(np.concatenate([q.mean, q.log_variance], -1)[np.asarray(objects.valid)])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
    h_app = apply(inference.appearance_map, small(network), x)
    np.testing.assert_allclose(h_app[1, 1, 6, :3], results[0][5, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", ["residual", "dense"])
@pytest.mark.parametrize("computed_on", ["map", "windows"])
def test_relaxed_locations_pass_the_gradient_on(network, computed_on, x):
    settings = small(network, computed_on)
    objects = packing.pack(jnp.array([1, 2]), capacity=4)
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(1), (2, 2, 480)))

    def total(weights):
        where = Locations(weights.argmax(-1), weights, jnp.zeros((2, 2)))
        q = apply(inference.appearance, settings, x, where, objects)
        return jnp.sum(objects.mask(q.mean) ** 2)

    slope = jax.grad(total)(weights)
    assert (jnp.abs(slope[0, 0]) > 0).mean() > 0.9
    assert (slope[0, 1] == 0).all()  # a slot without an object


def test_one_hot_weights_and_hard_locations_read_the_same(x):
    index = jnp.array([[0, 100], [479, 230]])
    objects = packing.pack(jnp.array([2, 2]), capacity=4)
    weights = jax.nn.one_hot(index, 480)
    for computed_on in ("map", "windows"):
        settings = small(computed_on=computed_on)
        hard, relaxed = (
            apply(inference.appearance, settings, x, Locations(index, w, index * 0.0), objects)
            for w in (None, weights)
        )
        np.testing.assert_allclose(hard.mean, relaxed.mean, rtol=1e-3, atol=1e-4)


def test_maps_shift_with_the_image():
    blob = jnp.zeros((1, 40, 40, 1)).at[:, 17:22, 16:20].set(1.0)
    shifted = jnp.roll(blob, (3, -5), axis=(1, 2))
    inside = np.s_[:, 12:28, 12:28]  # where neither sees the border
    for function in (inference.location_logits, inference.appearance_map):
        before, after = (apply(function, small(), image) for image in (blob, shifted))
        assert np.std(before) > 1e-3
        np.testing.assert_allclose(
            jnp.roll(before, (3, -5), axis=(1, 2))[inside], after[inside], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("factor", [1, 2, 4])
@pytest.mark.parametrize("canvas", [(64, 64), (30, 45)])
def test_maps_have_the_size_of_the_image(factor, canvas):
    settings = small(space_to_depth=factor)
    x = jnp.zeros((2, *canvas, 1))
    assert apply(inference.location_logits, settings, x).shape == (2, *canvas)
    assert apply(inference.appearance_map, settings, x).shape == (2, *canvas, 2 * 3)


def test_space_to_depth_keeps_neighbours_together():
    x = jnp.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    blocks = networks.space_to_depth(x, 2)
    np.testing.assert_array_equal(blocks[1, 1, 2].reshape(2, 2, 3), x[1, 2:4, 4:6])
    np.testing.assert_array_equal(networks.depth_to_space(blocks, 2), x)


@pytest.mark.parametrize("factor", [2, 4])
def test_a_blur_prefers_no_position_in_a_cell(factor):
    """What differs between the positions in a cell alone is gone, and a point stays a point."""
    pattern = np.random.default_rng(0).normal(size=(1, factor, factor))
    cells = np.tile(pattern, (1, 24 // factor, 32 // factor))
    inside = np.s_[:, factor:-factor, factor:-factor]
    np.testing.assert_allclose(networks.blur(cells, factor)[inside], pattern.mean(), atol=1e-6)
    np.testing.assert_allclose(networks.blur(np.ones((1, 9, 7)), factor), 1.0, rtol=1e-6)
    point = jnp.zeros((1, 24, 32)).at[0, 12, 15].set(factor**2)
    height = 1 - np.arange(factor) / factor
    quarter = networks.blur(point, factor)[0, 12 : 12 + factor, 15 : 15 + factor]
    np.testing.assert_allclose(quarter, np.outer(height, height), atol=1e-6)


def test_location_logits_are_blurred_if_the_settings_say_so(x):
    plain = small(space_to_depth=4)
    blurred = dataclasses.replace(
        plain, location=dataclasses.replace(plain.location, blur_logits=True)
    )
    expected = networks.blur(apply(inference.location_logits, plain, x), 4)
    np.testing.assert_allclose(
        apply(inference.location_logits, blurred, x), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "decoder",
    [
        DecoderSettings(network="residual", width=4, blocks=3, seed_size=8, seed_channels=16),
        DecoderSettings(network="dense", hidden=(16, 16)),
    ],
)
def test_sprites_are_probabilities_of_the_right_size(decoder):
    settings = dataclasses.replace(small(), channels=3, decoder=decoder)
    objects = packing.pack(jnp.array([2, 1]), capacity=5)
    z = jax.random.normal(jax.random.key(1), (5, 3))
    sprites = apply(generative.decode, settings, z, objects)
    assert sprites.shape == (5, 5, 5, 3)
    assert (sprites[:3] > 0).all()
    assert (sprites[:3] < 1).all()
    assert (sprites[3:] == 0).all()


def test_empty_entries_leave_batch_statistics_alone():
    settings = small(computed_on="windows")
    decode = compiled(generative.decode, settings, train=("decoder",))
    z = jax.random.normal(jax.random.key(1), (6, 3))

    def stats(capacity, filler):
        objects = packing.pack(jnp.array([2, 1]), capacity)
        padded = jnp.concatenate([z[:3], jnp.full((capacity - 3, 3), filler)])
        sprites, batch_stats = decode(initialised(settings), padded, objects)
        return sprites[:3], batch_stats["decoder"]

    for ours, theirs in zip(
        jax.tree.leaves(stats(3, 0.0)), jax.tree.leaves(stats(8, 77.0)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_training_updates_batch_statistics_and_evaluation_does_not(x):
    variables = initialised(small())

    def moved(train, name):
        location_logits = compiled(inference.location_logits, small(), train)
        _, batch_stats = location_logits(variables, x)
        pair = batch_stats[name], variables["batch_stats"][name]
        changed = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), *pair)
        return set(jax.tree.leaves(changed))

    assert moved(("location",), "location") == {True}
    assert moved(("location",), "appearance") == {False}
    assert moved(("appearance",), "location") == {False}  # it is used, but frozen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": "transformer"}, "'transformer'"),
        ({"computed_on": "sparse"}, "'sparse'"),
        ({"network": "dense", "window": 8}, "window=8 must be odd"),
    ],
)
def test_impossible_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AppearanceSettings(**{"network": "residual", "computed_on": "map", **arguments})


# --- variational autoencoders ------------------------------------------------


GLIMPSE = small_models.glimpse()


@pytest.mark.parametrize(
    "settings",
    [auxiliary(width=4), *(baseline(width=4, space_to_depth=f) for f in (1, 8)), GLIMPSE],
)
def test_vae_bounds_have_their_shapes_on_any_canvas(settings):
    x = jnp.zeros((3, 34, 50, 1))
    elbo = apply(vae.elbo, settings, x, keys(1, 3))
    grid = tuple(-(-side // module_of(settings).cell) for side in (34, 50))
    assert elbo.kl.shape == (3, *grid)
    assert elbo.terms.elbo.shape == (3,)
    np.testing.assert_allclose(elbo.terms.kl, elbo.kl.sum((1, 2)), rtol=1e-5)

    def shape_of(function, *args):
        bound = model.bind(lambda module: function(module, *args), module_of(settings))
        return jax.eval_shape(bound, initialised(settings))

    assert shape_of(vae.log_weights, x, keys(1, 3), 4)[0].shape == (4, 3)
    assert shape_of(vae.bound, x, keys(1, 3), 4).log_p.shape == (3,)
    assert shape_of(vae.sample_prior, keys(1, 2), (34, 50)).shape == (2, 34, 50, 1)


def test_other_stems_of_the_baseline_are_refused():
    with pytest.raises(ValueError, match="space_to_depth=2 must be 1 or 8"):
        baseline(space_to_depth=2)


def test_crops_are_parts_of_the_image_with_a_foreground_pixel():
    """Anywhere in them, and wherever the foreground pixel is: in a corner, too."""
    x = np.zeros((300, 20, 30, 2), np.float32)
    pixel = np.array([(0, 0), (19, 29), (9, 14)])[np.arange(300) % 3]
    x[np.arange(300), pixel[:, 0], pixel[:, 1], 1] = 1
    x[:, :, :, 0] = np.arange(600).reshape(20, 30) / 1e12  # tells where a pixel came from
    crops = np.asarray(vae.crop(jnp.asarray(x), keys(5, 300), 8))
    assert crops.shape == (300, 8, 8, 2)
    corner = np.rint(crops[:, 0, 0, 0] * 1e12).astype(int)
    for k, (row, column) in enumerate(zip(*np.divmod(corner, 30), strict=True)):
        np.testing.assert_array_equal(crops[k], x[k, row : row + 8, column : column + 8])
    assert (crops[..., 1].sum((1, 2)) == 1).all()
    middle = crops[2::3, :, :, 1].sum(0)
    assert middle.sum(0).all()
    assert middle.sum(1).all()
    black = vae.crop(jnp.zeros((50, 20, 30, 1)), keys(6, 50), 8)
    assert not black.any()
    assert vae.crop(jnp.zeros((1, 20, 30, 1)), keys(6, 1), 32).shape == (1, 20, 20, 1)


def test_auxiliary_latents_are_11_by_11_by_8():
    assert latents_of(auxiliary(), (64, 64)) == (1, 11, 11, 8)


@pytest.mark.parametrize("settings", [baseline(width=4, latents=2), GLIMPSE])
def test_vae_elbo_is_the_mean_log_weight(settings):
    """E[log w] = ELBO, for both use the same q and the same p."""
    variables = initialised(settings)
    x = (jax.random.uniform(jax.random.key(2), (2, 16, 16, 1)) < 0.2).astype(jnp.float32)
    one = compiled(vae.elbo, settings)
    elbo = np.stack([one(variables, x, k).terms.elbo for k in keys(3, 4_000).reshape(2_000, 2)])
    log_weights = compiled(vae.log_weights, settings, static=("num_samples",))
    log_w, _ = log_weights(variables, x, keys(4, 2), num_samples=2_000)
    error = np.sqrt((np.var(elbo, 0) + np.var(log_w, 0)) / 2_000)
    assert (np.abs(np.mean(elbo, 0) - np.mean(log_w, 0)) < 4 * error).all()


def test_beta_weighs_the_kl():
    terms = vae.Terms(jnp.array([-5.0]), jnp.array([4.0]))
    weighted = [terms.weighted_elbo(b)[0] for b in (0.0, 0.5, 1.0)]
    np.testing.assert_array_equal(weighted, [-5, -7, -9])
    assert terms.elbo == -9


def test_the_kl_map_lies_over_the_pixels_that_it_stands_for():
    for cell in (3, 10), (0, 0), (10, 10):
        grid = jnp.zeros((1, 11, 11)).at[0, *cell].set(5.0)
        enlarged = np.asarray(vae.kl_map(grid, 6, (64, 64)))[0]
        assert enlarged.shape == (64, 64)
        centre = np.array(np.unravel_index(enlarged.argmax(), (64, 64)))
        assert np.abs(centre - (6 * np.array(cell) + 2.5)).max() <= 2.5


def test_the_kl_of_an_object_shows_up_over_it():
    """The receptive fields of the grid are where `kl_map` puts them."""

    def grid(x):
        return apply(vae.kl, auxiliary(width=8), x)

    blank = jnp.zeros((1, 64, 64, 1))
    for row, column in ((30, 33), (24, 38)):
        dot = blank.at[0, row, column].set(1.0)
        change = np.abs(np.asarray(vae.kl_map(jnp.abs(grid(dot) - grid(blank)), 6, (64, 64))))[0]
        weight = change / change.sum()
        centre = (weight.sum(1) @ np.arange(64), weight.sum(0) @ np.arange(64))
        np.testing.assert_allclose(centre, (row, column), atol=4)


# --- how networks are computed -----------------------------------------------


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_a_packed_convolution_is_the_convolution(padding, kernel):
    execution = networks.Execution(packed=2)
    x = jax.random.normal(jax.random.key(0), (2, 9, 12, 3))
    plain = networks.Conv(networks.Execution(), 4, kernel, padding=padding)
    variables = plain.init(jax.random.key(1), x)
    variables = jax.tree.map(lambda a: a + 0.1, variables)  # a bias other than 0
    packed = networks.Conv(execution, 4, kernel, padding=padding)
    y = packed.apply(variables, x)
    np.testing.assert_allclose(y, plain.apply(variables, x), rtol=1e-4, atol=1e-5)


def trained_on_features(settings, variables, x):
    """h_loc, h_app at two relaxed locations, gradients and batch statistics, in training."""
    lavae = dataclasses.replace(module_of(settings), train=("location", "appearance"))
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(1), (2, 1, x[0].size)))
    where = Locations(weights.argmax(-1), weights, jnp.zeros((2, 1)))
    objects = packing.pack(jnp.array([1, 1]), capacity=2)

    def features(lavae, x):
        return lavae.location(x), inference.appearance(lavae, x, where, objects).mean

    def loss(params):
        bound = model.bind_training(features, lavae)
        out, stats = bound({"params": params, "batch_stats": variables["batch_stats"]}, x)
        return sum(jnp.sin(a).sum() for a in out), (out, stats)

    return jax.jit(jax.grad(loss, has_aux=True))(variables["params"])


@pytest.mark.parametrize("width", [24, 23])
def test_packed_pixels_change_neither_features_nor_gradients_nor_statistics(width, x):
    """A width that is not a multiple is computed without packing."""
    settings, x = small(), x[:, :, :width]
    packed = dataclasses.replace(settings, packed_pixels=2)
    variables = initialised(settings)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4),
        trained_on_features(settings, variables, x),
        trained_on_features(packed, variables, x),
    )


def test_bfloat16_activations_round_features_but_not_logits(x):
    settings = small()
    variables = initialised(settings)
    exact = compiled(inference.location_logits, settings)(variables, x)
    rounded_settings = dataclasses.replace(settings, activations="bfloat16")
    rounded = compiled(inference.location_logits, rounded_settings)(variables, x)
    assert rounded.dtype == jnp.float32
    assert not np.array_equal(rounded, rounded.astype(jnp.bfloat16))
    error = np.abs(rounded - exact).max() / np.std(exact)
    assert 0 < error < 0.1
    assert {str(a.dtype) for a in jax.tree.leaves(initialised(rounded_settings))} == {"float32"}
