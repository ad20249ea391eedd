import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import compiled, initialised, small

from lavae_jax import generative, inference, model, networks, packing, vae
from lavae_jax.locations import Locations
from lavae_jax.model import ModelConfig
from lavae_jax.networks import AppearanceConfig, DecoderConfig


def keys(seed, n):
    return jax.random.split(jax.random.key(seed), n)


location_logits = compiled(inference.location_logits)
appearance_map = compiled(inference.appearance_map)
appearance = compiled(inference.appearance)
decode = compiled(generative.decode)


def num_params(params):
    return sum(p.size for p in jax.tree.leaves(params))


@pytest.mark.parametrize(("channels", "sprite_size"), [(1, 17), (3, 21)])
def test_lavae_has_the_paper_s_size(channels, sprite_size):
    """About 500k parameters, split almost evenly in three."""
    config = ModelConfig(channels=channels, sprite_size=sprite_size)
    params = jax.eval_shape(lambda: model.init(config, jax.random.key(0))).params
    sizes = [num_params(params[name]) for name in ("location", "appearance", "decoder")]
    assert 480e3 < sum(sizes) < 520e3
    for size in sizes:
        assert 0.31 < size / sum(sizes) < 0.36


@pytest.mark.parametrize("channels", [1, 3])
def test_the_baseline_has_about_a_million_parameters_and_1024_latents(channels):
    config = vae.BaselineConfig(channels=channels)
    params = jax.eval_shape(lambda: vae.init(config, jax.random.key(0))).params
    assert 0.9e6 < num_params(params) < 1.1e6
    z = jax.eval_shape(
        lambda: config.encoder().init_with_output(
            jax.random.key(0), jnp.zeros((1, 64, 64, channels)), train=False
        )[0]
    )
    assert z.shape == (1, 8, 8, 2 * 16)


@pytest.fixture
def x():
    return (jax.random.uniform(jax.random.key(9), (2, 20, 24, 1)) < 0.3).astype(jnp.float32)


@pytest.mark.parametrize("kind", ["residual", "window"])
def test_appearance_on_windows_is_the_map_at_the_locations(kind, x):
    """At hard locations, on the border and in the corners as inside."""
    config = small(kind)
    variables = initialised(config)
    pixels = 20 * 24
    corners = [0, 23, pixels - 24, pixels - 1]
    index = jnp.array([corners, [5, 30, 250, 311]])
    where = Locations(index, None, jnp.zeros(index.shape))
    objects = packing.pack(jnp.array([4, 3]), capacity=9)
    results = []
    for form in ("map", "windows"):
        changed = dataclasses.replace(
            config, appearance=dataclasses.replace(config.appearance, form=form)
        )
        q, _ = appearance(changed, variables, x, where, objects, train=False)
        results.append(np.concatenate([q.mean, q.log_variance], -1)[np.asarray(objects.valid)])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
    h_app, _ = appearance_map(config, variables, x, train=False)
    np.testing.assert_allclose(h_app[1, 1, 6, :3], results[0][5, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["residual", "window"])
@pytest.mark.parametrize("form", ["map", "windows"])
def test_relaxed_locations_pass_the_gradient_on(kind, form, x):
    config = small(kind, form)
    variables = initialised(config)
    objects = packing.pack(jnp.array([1, 2]), capacity=4)
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(1), (2, 2, 480)))

    def total(weights):
        where = Locations(weights.argmax(-1), weights, jnp.zeros((2, 2)))
        q, _ = appearance(config, variables, x, where, objects, train=False)
        return jnp.sum(objects.mask(q.mean) ** 2)

    slope = jax.grad(total)(weights)
    assert (jnp.abs(slope[0, 0]) > 0).mean() > 0.9
    assert (slope[0, 1] == 0).all()  # a slot without an object


def test_one_hot_weights_and_hard_locations_read_the_same(x):
    index = jnp.array([[0, 100], [479, 230]])
    objects = packing.pack(jnp.array([2, 2]), capacity=4)
    weights = jax.nn.one_hot(index, 480)
    for form in ("map", "windows"):
        config = small(form=form)
        variables = initialised(config)
        hard, relaxed = (
            appearance(
                config, variables, x, Locations(index, w, index * 0.0), objects, train=False
            )[0]
            for w in (None, weights)
        )
        np.testing.assert_allclose(hard.mean, relaxed.mean, rtol=1e-3, atol=1e-4)


def test_maps_shift_with_the_image():
    config = small()
    variables = initialised(config)
    blob = jnp.zeros((1, 40, 40, 1)).at[:, 17:22, 16:20].set(1.0)
    shifted = jnp.roll(blob, (3, -5), axis=(1, 2))
    inside = np.s_[:, 12:28, 12:28]  # where neither sees the border
    for function in (location_logits, appearance_map):
        before, _ = function(config, variables, blob, train=False)
        after, _ = function(config, variables, shifted, train=False)
        assert np.std(before) > 1e-3
        np.testing.assert_allclose(
            jnp.roll(before, (3, -5), axis=(1, 2))[inside], after[inside], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("factor", [1, 2, 4])
@pytest.mark.parametrize("canvas", [(64, 64), (30, 45)])
def test_maps_have_the_size_of_the_image(factor, canvas):
    config = small(space_to_depth=factor)
    variables = initialised(config)
    x = jnp.zeros((2, *canvas, 1))
    assert location_logits(config, variables, x, train=False)[0].shape == (2, *canvas)
    h_app, _ = appearance_map(config, variables, x, train=False)
    assert h_app.shape == (2, *canvas, 2 * 3)


def test_space_to_depth_keeps_neighbours_together():
    x = jnp.arange(2 * 4 * 6 * 3.0).reshape(2, 4, 6, 3)
    blocks = networks.space_to_depth(x, 2)
    np.testing.assert_array_equal(blocks[1, 1, 2].reshape(2, 2, 3), x[1, 2:4, 4:6])
    np.testing.assert_array_equal(networks.depth_to_space(blocks, 2), x)


@pytest.mark.parametrize("kind", ["residual", "dense"])
def test_sprites_are_probabilities_of_the_right_size(kind):
    config = dataclasses.replace(small(), channels=3, decoder=DecoderConfig(kind, width=4))
    variables = initialised(config)
    objects = packing.pack(jnp.array([2, 1]), capacity=5)
    z = jax.random.normal(jax.random.key(1), (5, 3))
    sprites, _ = decode(config, variables, z, objects, train=False)
    assert sprites.shape == (5, 5, 5, 3)
    assert (sprites[:3] > 0).all()
    assert (sprites[:3] < 1).all()
    assert (sprites[3:] == 0).all()


def test_empty_places_leave_batch_statistics_alone():
    config = small(form="windows")
    variables = initialised(config)
    z = jax.random.normal(jax.random.key(1), (6, 3))

    def stats(capacity, filler):
        objects = packing.pack(jnp.array([2, 1]), capacity)
        padded = jnp.concatenate([z[:3], jnp.full((capacity - 3, 3), filler)])
        sprites, new = decode(config, variables, padded, objects, train=True)
        return sprites[:3], new.batch_stats["decoder"]

    for ours, theirs in zip(
        jax.tree.leaves(stats(3, 0.0)), jax.tree.leaves(stats(8, 77.0)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_training_updates_batch_statistics_and_evaluation_does_not(x):
    config = small()
    variables = initialised(config)
    _, trained = location_logits(config, variables, x, train=True)
    _, evaluated = location_logits(config, variables, x, train=False)

    def moved(new, name):
        pair = new.batch_stats[name], variables.batch_stats[name]
        changed = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), *pair)
        return set(jax.tree.leaves(changed))

    assert moved(trained, "location") == {True}
    assert moved(trained, "appearance") == {False}
    assert moved(evaluated, "location") == {False}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "transformer"}, "'transformer'"),
        ({"form": "sparse"}, "'sparse'"),
        ({"kind": "window", "window": 8}, "window=8 must be odd"),
        ({"form": "windows", "space_to_depth": 2}, "space_to_depth=2 needs form='map'"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AppearanceConfig(**arguments)


# --- variational autoencoders ------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        vae.AuxiliaryConfig(width=4),
        *(vae.BaselineConfig(width=4, space_to_depth=f) for f in (1, 8)),
    ],
)
def test_vae_bounds_have_their_shapes_on_any_canvas(config):
    variables = initialised(config)
    x = jnp.zeros((3, 34, 50, 1))
    terms, _ = compiled(vae.elbo)(config, variables, x, keys(1, 3))
    grid = tuple(-(-side // config.cell) for side in (34, 50))
    assert terms.kl.shape == (3, *grid)
    assert terms.elbo().shape == (3,)
    key = jax.random.key(1)
    log_weights = jax.eval_shape(lambda: vae.log_weights(config, variables, x, keys(1, 3), 4)[0])
    assert log_weights.shape == (4, 3)
    images = jax.eval_shape(lambda: vae.sample_prior(config, variables, key, 2, (34, 50)))
    assert images.shape == (2, 34, 50, 1)


def test_other_stems_of_the_baseline_are_refused():
    with pytest.raises(ValueError, match="space_to_depth=2 must be 1 or 8"):
        vae.BaselineConfig(space_to_depth=2)


def test_auxiliary_latents_are_11_by_11_by_8():
    config = vae.AuxiliaryConfig()
    z = jax.eval_shape(
        lambda: config.encoder().init_with_output(
            jax.random.key(0), jnp.zeros((1, 66, 66, 1)), train=False
        )[0]
    )
    assert z.shape == (1, 11, 11, 2 * 8)


def test_vae_elbo_is_the_mean_log_weight():
    """E[log w] = ELBO, for both use the same q and the same p."""
    config = vae.BaselineConfig(width=4, latents=2)
    variables = initialised(config)
    x = (jax.random.uniform(jax.random.key(2), (2, 16, 16, 1)) < 0.2).astype(jnp.float32)
    one = jax.jit(lambda k: vae.elbo(config, variables, x, k)[0].elbo())
    elbo = np.stack([one(k) for k in keys(3, 4_000).reshape(2_000, 2)])
    log_w = jax.jit(lambda k: vae.log_weights(config, variables, x, k, 2_000)[0])(keys(4, 2))
    error = np.sqrt((np.var(elbo, 0) + np.var(log_w, 0)) / 2_000)
    assert (np.abs(np.mean(elbo, 0) - np.mean(log_w, 0)) < 4 * error).all()


def test_beta_weighs_the_kl():
    terms = vae.Terms(jnp.array([-5.0]), jnp.ones((1, 2, 2)))
    np.testing.assert_array_equal([terms.elbo(b)[0] for b in (0.0, 0.5, 1.0)], [-5, -7, -9])


def test_the_kl_map_lies_over_the_pixels_that_it_stands_for():
    for cell in (3, 10), (0, 0), (10, 10):
        grid = jnp.zeros((1, 11, 11)).at[0, *cell].set(5.0)
        enlarged = np.asarray(vae.kl_map(grid, 6, (64, 64)))[0]
        assert enlarged.shape == (64, 64)
        centre = np.array(np.unravel_index(enlarged.argmax(), (64, 64)))
        assert np.abs(centre - (6 * np.array(cell) + 2.5)).max() <= 2.5


def test_the_kl_of_an_object_shows_up_over_it():
    """The receptive fields of the grid are where `kl_map` puts them."""
    config = vae.AuxiliaryConfig(width=8)
    variables = initialised(config)

    @jax.jit
    def grid(x):
        return vae.elbo(config, variables, x, keys(1, 1))[0].kl

    blank = jnp.zeros((1, 64, 64, 1))
    for row, column in ((30, 33), (24, 38)):
        dot = blank.at[0, row, column].set(1.0)
        change = np.abs(np.asarray(vae.kl_map(jnp.abs(grid(dot) - grid(blank)), 6, (64, 64))))[0]
        weight = change / change.sum()
        centre = (weight.sum(1) @ np.arange(64), weight.sum(0) @ np.arange(64))
        np.testing.assert_allclose(centre, (row, column), atol=4)
