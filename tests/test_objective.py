"""The bounds, against exact enumeration on a canvas of 3 x 3 pixels and elsewhere."""

import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads
from small_models import compiled, initialised, module_of, paper, small

from lavae_jax import (
    bernoulli,
    counting,
    decomposition,
    generative,
    inference,
    model,
    objective,
    packing,
    placement,
    prior,
)
from lavae_jax.locations import Locations
from lavae_jax.model import LAVAE
from lavae_jax.packing import Budget, PackedObjects
from lavae_jax.prior import Mixture


def keys(seed, n):
    return jax.random.split(jax.random.key(seed), n)


# --- enumeration -------------------------------------------------------------

# f_count has three answers on a 3 x 3 map: every pixel is a peak (n = M = 2), one is,
# or none reaches the threshold.
COUNTING = {
    2: {"peak_radius": 0, "threshold": -99.0},
    1: {"peak_radius": 2, "threshold": -99.0},
    0: {"peak_radius": 2, "threshold": 99.0},
}


def tiny(count, components=0):
    """Sprites that reach all of the canvas and a flat q: weights of low variance."""
    return paper(
        sprite_size=5,
        max_objects=2,
        latent_size=1,
        gamma=0.5,
        location={"width": 4, "blocks": 1, "head_width": 4, "space_to_depth": 1},
        appearance={
            "network": "dense",
            "computed_on": "windows",
            "window": 3,
            "hidden": (4,),
        },
        decoder={"network": "dense", "hidden": (4,)},
        prior={"kind": "mixture" if components else "normal", "components": components},
        **COUNTING[count],
    )


APART = Mixture(np.array([0.0, 0.4]), np.array([[-0.2, 1.2], [-0.8, -0.8]]))


def with_mixture(variables, mixture=APART):
    return {**variables, "params": {**variables["params"], "prior": mixture}}


def quadrature(mixture):
    """Nodes and weights for the mean of a function under p(z_app)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    if mixture is None:
        return nodes, weights
    mean, raw = np.split(mixture.features.T, 2, axis=1)
    deviation = np.exp(8 * np.tanh(raw / 8) / 2)
    shares = np.exp(mixture.logits) / np.exp(mixture.logits).sum()
    shares = [*(1 - prior.STANDARD_SHARE) * shares, prior.STANDARD_SHARE]
    nodes = np.concatenate([mean + deviation * nodes, nodes[None]])
    return nodes.ravel(), np.outer(shares, weights).ravel()


X = jnp.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]], float)[None, ..., None]


def exact_log_joint(settings, variables, count):
    """log p(x, n): a sum over ordered locations, quadrature over each appearance."""
    nodes, weights = quadrature(variables["params"].get("prior"))
    size = len(nodes)
    every = PackedObjects(jnp.zeros(size, int), jnp.zeros(size, int), jnp.ones(size, bool))
    decode = compiled(generative.decode, settings)
    sprites = np.asarray(decode(variables, jnp.asarray(nodes)[:, None], every))[..., 0]

    def drawn(sprite, pixel):
        canvas = np.zeros((7, 7))
        row, column = divmod(pixel, 3)
        canvas[row : row + 5, column : column + 5] = sprite
        return canvas[2:5, 2:5]

    total = 0.0
    for where in itertools.permutations(range(9), count):
        grid = list(itertools.product(range(size), repeat=count))
        intensity = np.zeros((len(grid), 3, 3))
        weight = np.ones(len(grid))
        for i, pixel in enumerate(where):
            placed = np.stack([drawn(s, pixel) for s in sprites])
            node = np.array([g[i] for g in grid])
            intensity += placed[node]
            weight *= weights[node]
        mean = np.asarray(bernoulli.pixel_means(jnp.asarray(intensity)), np.float64)
        x = np.asarray(X[0, ..., 0])
        likelihood = np.where(x == 1, mean, 1 - mean).prod((1, 2))
        total += (weight * likelihood).sum()
    num_orders = np.prod([9 - i for i in range(count)])
    log_p_n = np.log(jax.nn.softmax(variables["params"]["count_logits"]))[count]
    return np.log(total / num_orders) + log_p_n


@pytest.fixture(scope="module", params=[(0, 0), (1, 0), (2, 0), (1, 2), (2, 2)], ids=str)
def enumerated(request):
    count, components = request.param
    settings = tiny(count, components)
    variables = jax.tree.map(np.copy, initialised(settings))
    if components:
        variables = with_mixture(variables)
        variables["params"]["decoder"]["Dense_0"]["kernel"] *= 2  # so that priors make a difference
    variables["params"]["decoder"]["Dense_1"]["bias"] -= 1.5  # sprites that seldom add up to 1
    exact = [exact_log_joint(settings, variables, n) for n in range(3)]
    h_loc = compiled(inference.location_logits, settings)(variables, X)
    assert inference.detect(settings, h_loc).count.tolist() == [count]
    weigh = compiled(objective.log_weights, settings, static=("num_samples",))
    log_w, _ = weigh(variables, X, keys(1, 1), num_samples=100_000)
    return settings, variables, exact, np.asarray(log_w, np.float64)[:, 0]


def bound(log_w, k):
    """The mean of the importance-weighted bound with k samples, and its error."""
    groups = log_w.reshape(-1, k)
    top = groups.max(1, keepdims=True)
    values = np.log(np.exp(groups - top).mean(1)) + top[:, 0]
    return values.mean(), values.std() / np.sqrt(len(values))


def test_the_bound_rises_to_the_exact_likelihood(enumerated):
    """q(n | x) is a point, so the limit is log p(x, n̂), which is below log p(x)."""
    settings, _, exact, log_w = enumerated
    count = next(n for n, v in COUNTING.items() if v.items() <= vars(settings).items())
    limit = exact[count]
    means, errors = zip(*(bound(log_w, k) for k in (1, 10, 100, 1_000)), strict=True)
    slack = 4 * np.array(errors) + 1e-4
    assert (np.array(means) <= limit + slack).all()
    assert all(a <= b + s for a, b, s in zip(means[:-1], means[1:], slack[1:], strict=True))
    weight = np.exp(log_w - log_w.max())
    relative_error = weight.std() / weight.mean() / np.sqrt(len(weight))
    assert relative_error < 0.005
    estimate = np.log(weight.mean()) + log_w.max()
    np.testing.assert_allclose(estimate, limit, atol=4 * relative_error + 1e-4)
    if count:
        assert means[0] < limit - 0.05  # a bound with something to gain
    assert limit < np.logaddexp.reduce(exact)


def test_the_elbo_is_the_mean_log_weight(enumerated):
    settings, variables, _, log_w = enumerated
    x = jnp.tile(X, (20_000, 1, 1, 1))
    out = elbo(settings)(variables, x, keys(2, 20_000))
    values = np.asarray(out.terms.elbo, np.float64)
    error = np.sqrt(values.var() / len(values) + log_w.var() / len(log_w)) + 1e-5
    assert abs(values.mean() - log_w.mean()) < 4 * error


def test_the_bound_is_the_log_of_the_mean_weight(enumerated):
    log_w = enumerated[-1][:1_000]
    ours = objective.Bound.of_samples(jnp.asarray(log_w)[:, None], ()).log_p
    np.testing.assert_allclose(ours, bound(log_w, 1_000)[0], rtol=1e-5)


# --- gradients ---------------------------------------------------------------


def elbo(settings, train=()):
    return compiled(objective.elbo, settings, train, static=("budget",))


@pytest.mark.parametrize(("network", "computed_on"), [("residual", "map"), ("dense", "windows")])
def test_elbo_gradients_through_all_networks(network, computed_on):
    with jax.enable_x64(True):
        settings = small(network, computed_on, threshold=-9.0, peak_radius=2)
        variables = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), initialised(settings))
        apply = model.bind_training(objective.elbo, module_of(settings, LAVAE.NETWORKS))
        x = (jax.random.uniform(jax.random.key(0), (2, 7, 8, 1)) < 0.3).astype(jnp.float64)

        @jax.jit
        def loss(params):
            new = {**variables, "params": params}
            out, _ = apply(new, x, keys(1, 2), Budget(3, 5), temperature=0.7)
            return out.terms.elbo.sum()

        params = variables["params"]
        check_grads(loss, (params,), order=1, modes=["rev"], eps=1e-6, rtol=1e-4)
        slope = jax.jit(jax.grad(loss))(params)
        for name in ("location", "appearance", "decoder", "count_logits"):
            assert any(bool(jnp.any(g != 0)) for g in jax.tree.leaves(slope[name]))


@pytest.mark.parametrize("components", [0, 3])
def test_gradients_of_the_terms_and_of_the_bound(components):
    with jax.enable_x64(True):
        settings = tiny(2, components)
        lavae = module_of(settings)
        variables = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), initialised(settings))
        x = X.astype(jnp.float64)

        @jax.jit
        def parts(params):
            new = {**variables, "params": params}
            return model.bind(objective.elbo, lavae)(new, x, keys(1, 1), temperature=0.5).terms

        @jax.jit
        def bound(params):
            new = {**variables, "params": params}
            return model.bind(objective.bound, lavae)(new, x, keys(2, 1), 5).log_p

        params = variables["params"]
        check_grads(parts, (params,), order=1, modes=["rev"], eps=1e-6, rtol=1e-4)
        check_grads(bound, (params,), order=1, modes=["rev"], eps=1e-6, rtol=1e-4)
        if components:
            slope = jax.jit(jax.grad(lambda params: bound(params).sum()))(params)["prior"]
            assert all(bool(jnp.all(g != 0)) for g in slope)


# --- priors ------------------------------------------------------------------


def test_a_mixture_of_standard_components_is_the_paper_s_prior():
    """In the bound and its weights; the ELBO has the same mean."""
    normal, mixture = tiny(2), tiny(2, 3)
    variables = initialised(normal)
    standard = with_mixture(variables, prior.standard(None, 3, 1))
    weigh = [
        compiled(objective.log_weights, settings, static=("num_samples",))
        for settings in (normal, mixture)
    ]
    log_w, parts = weigh[0](variables, X, keys(1, 1), num_samples=2_000)
    log_w_mixture, parts_mixture = weigh[1](standard, X, keys(1, 1), num_samples=2_000)
    np.testing.assert_allclose(log_w_mixture, log_w, rtol=1e-5, atol=1e-5)
    sampled = np.asarray(parts_mixture.kl_appearance)
    error = 4 * sampled.std() / np.sqrt(sampled.size)
    np.testing.assert_allclose(sampled.mean(), parts.kl_appearance.mean(), atol=error)
    for name in ("log_likelihood", "kl_count", "kl_location"):
        ours, theirs = getattr(parts_mixture, name), getattr(parts, name)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


# --- invariances -------------------------------------------------------------


@pytest.fixture(scope="module")
def scene():
    """Four images in which half of the location network's peaks count as objects."""
    settings = small("dense", "windows", peak_radius=2)
    x = (np.random.default_rng(0).uniform(size=(4, 12, 12, 1)) < 0.2).astype(np.float32)
    variables = initialised(settings)
    h_loc = compiled(inference.location_logits, settings)(variables, x)
    heights = h_loc[counting.peaks(h_loc, -np.inf, settings.peak_radius)]
    threshold = float(np.median(heights)) / settings.gamma_for((12, 12))
    return dataclasses.replace(settings, threshold=threshold), variables, jnp.asarray(x)


@pytest.mark.parametrize("computed_on", ["windows", "map"])
def test_the_samples_of_an_image_do_not_depend_on_its_index_in_the_batch(scene, computed_on):
    settings, variables, x = scene
    appearance = dataclasses.replace(settings.appearance, computed_on=computed_on)
    settings = dataclasses.replace(settings, appearance=appearance)
    weigh = compiled(objective.log_weights, settings, static=("num_samples",))
    log_w, _ = weigh(variables, x, keys(0, 4), num_samples=5)
    assert np.ptp(log_w, axis=1).min() > 1
    others = jnp.array([2, 3, 1, 0])  # among other images, at another index
    log_w_there, _ = weigh(variables, x[others], keys(0, 4)[others], num_samples=5)
    np.testing.assert_allclose(log_w[:, others], log_w_there, rtol=1e-4)


def test_the_order_of_objects_does_not_matter(scene):
    settings, variables, x = scene
    objects = PackedObjects(jnp.zeros(3, int), jnp.arange(3), jnp.ones(3, bool))
    z = jax.random.normal(jax.random.key(0), (3, settings.latent_size))
    index = jnp.array([[14, 17, 100]])
    images = []
    for order in itertools.permutations(range(3)):
        order = jnp.array(order)
        where = Locations.hard(index[:, order])
        sprites = compiled(generative.decode, settings)(variables, z[order], objects)
        images.append(generative.intensity(sprites, where, objects, (12, 12)))
    for image in images[1:]:
        np.testing.assert_allclose(image, images[0], atol=1e-6)
        np.testing.assert_allclose(
            generative.log_likelihood(x[:1], image),
            generative.log_likelihood(x[:1], images[0]),
            rtol=1e-4,
        )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("relaxed", [False, True])
def test_later_slots_are_painted_over_earlier_ones(channels, relaxed):
    random = np.random.default_rng(0)
    sprites = random.uniform(size=(5, 3, 3, channels)).astype(np.float32)
    count, canvas = np.array([3, 0, 2]), (7, 8)
    objects = packing.pack(jnp.asarray(count), 5)
    index = np.array([[9, 18, 17], [0, 1, 2], [0, 9, 55]])
    where = Locations.hard(jnp.asarray(index))
    if relaxed:
        where = where._replace(weights=jax.nn.one_hot(index, 56))
    out = generative.intensity(jnp.asarray(sprites), where, objects, canvas, "over")

    expected, used = np.zeros((3, 9, 10, channels)), iter(sprites)
    for image, n in enumerate(count):
        for row, column in zip(*np.divmod(index[image, :n], 8), strict=True):
            behind, front = expected[image, row : row + 3, column : column + 3], next(used)
            behind[:] = front + behind * (1 - front.max(-1, keepdims=True))
    np.testing.assert_allclose(out, expected[:, 1:-1, 1:-1], atol=1e-6)
    location = np.stack(np.divmod(index[0], 8), -1)
    composed = placement.compose(sprites[:3], location, canvas, "over")
    np.testing.assert_allclose(composed, expected[0, 1:-1, 1:-1], atol=1e-6)
    if channels == 1:  # noisy-or, which has no order
        turned = placement.compose(sprites[2::-1], location[::-1], canvas, "over")
        np.testing.assert_allclose(turned, composed, atol=1e-6)


def test_the_object_that_explains_the_shared_pixels_is_in_front():
    colours = np.eye(3, dtype=np.float32)  # red, green, blue
    sprites = np.broadcast_to(colours[:, None, None], (3, 5, 5, 3))
    location = np.array([[4, 4], [6, 6], [8, 4]])
    for order in itertools.permutations(range(3)):
        image = placement.compose(sprites[list(order)], location[list(order)], (14, 12), "over")
        found = decomposition.depth_order(sprites, location, image)
        again = placement.compose(sprites[found], location[found], (14, 12), "over")
        np.testing.assert_array_equal(again, image)
    apart = np.array([[2, 2], [2, 9], [9, 2]])
    image = placement.compose(sprites, apart, (14, 12), "over")
    assert decomposition.depth_order(sprites, apart, image).tolist() == [0, 1, 2]


def test_no_objects_give_a_black_canvas_and_a_finite_likelihood(scene):
    settings, variables, x = scene
    settings = dataclasses.replace(settings, threshold=99.0)
    for temperature in (None, 0.5):
        out = elbo(settings)(variables, x, keys(0, 4), temperature=temperature)
        assert out.count.tolist() == [0, 0, 0, 0]
        assert (out.intensity == 0).all()
        assert np.isfinite(out.terms.elbo).all()
        np.testing.assert_array_equal(out.terms.kl_location, 0)
        np.testing.assert_array_equal(out.terms.kl_appearance, 0)
        foreground = x.sum((1, 2, 3))
        np.testing.assert_allclose(
            out.terms.log_likelihood, foreground * np.log(bernoulli.EPSILON), rtol=1e-3
        )


def test_packing_changes_nothing(scene):
    settings, variables, x = scene
    bound = elbo(settings)
    every = bound(variables, x, keys(0, 4), budget=Budget(4, 16), temperature=0.5)
    total = int(every.posterior.count.sum())
    assert 4 < total < 16
    exact = bound(variables, x, keys(0, 4), budget=Budget(4, total), temperature=0.5)
    assert exact.posterior.overflow == every.posterior.overflow == 0
    for ours, theirs in zip(exact.terms, every.terms, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_an_object_keeps_its_near_components_in_any_order_of_sampling(scene):
    settings, variables, x = scene
    settings = dataclasses.replace(settings, support="peaks")
    found = compiled(inference.infer_locations, settings)(variables, x)
    pixel = found.pixel
    near = found._replace(near=jnp.stack([pixel, -pixel], -1))
    out = elbo(settings)(variables, x, keys(3, 4), located=near)
    objects, where = out.posterior.objects, out.posterior.where
    drawn = np.asarray(objects.gather(where.index))
    assert (drawn != np.asarray(objects.gather(pixel))).any()  # not in the order of the peaks
    np.testing.assert_array_equal(out.posterior.near, np.stack([drawn, -drawn], -1))


def test_the_elbo_evaluates_the_components_near_each_object():
    settings = dataclasses.replace(tiny(2, 2), support="peaks")
    variables = with_mixture(initialised(tiny(2)))
    found = compiled(inference.infer_locations, settings)(variables, X)
    divergence = jax.jit(prior.divergence)
    kl = []
    for near in (None, [0, 1], [0], [1]):
        shape = None if near is None else (*found.pixel.shape, len(near))
        of_all = near and jnp.broadcast_to(jnp.array(near), shape)
        out = elbo(settings)(variables, X, keys(0, 1), located=found._replace(near=of_all))
        q, noise = out.posterior.appearance, out.posterior.noise
        evaluated = None if near is None else jnp.broadcast_to(jnp.array(near), (2, len(near)))
        expected = divergence(APART, q, noise, evaluated).kl.sum()
        np.testing.assert_allclose(out.terms.kl_appearance, [expected], rtol=1e-4)
        kl.append(float(expected))
    every, both, first, second = kl
    np.testing.assert_allclose(both, every, rtol=1e-4)
    assert min(first, second) > every + 0.1
    assert first != second


def test_overflow_is_counted_and_the_rest_is_right(scene):
    settings, variables, x = scene
    bound = elbo(settings)
    every = bound(variables, x, keys(0, 4), budget=Budget(4, 16), temperature=0.5)
    counts = np.asarray(every.posterior.count)
    small_budget = Budget(4, int(counts.sum()) - 1)
    cut = bound(variables, x, keys(0, 4), budget=small_budget, temperature=0.5)
    assert cut.posterior.overflow == 1
    np.testing.assert_array_equal(cut.posterior.count, counts - np.array([0, 0, 0, 1]))
    for ours, theirs in zip(cut.terms, every.terms, strict=True):
        np.testing.assert_allclose(ours[:3], theirs[:3], rtol=1e-4)


def test_forcing_one_object_leaves_the_inferred_count_alone(scene):
    settings, variables, x = scene
    free = elbo(settings)(variables, x, keys(0, 4))
    forced = elbo(settings)(variables, x, keys(0, 4), force_one=1.0)
    assert forced.posterior.count.tolist() == [1, 1, 1, 1]
    np.testing.assert_array_equal(forced.count, free.count)
    np.testing.assert_array_equal(forced.terms.kl_count, free.terms.kl_count)


@pytest.mark.parametrize("support", ["pixels", "peaks"])
def test_given_locations_replace_the_location_network(scene, support):
    settings, variables, x = scene
    settings = dataclasses.replace(settings, support=support)
    found = compiled(inference.infer_locations, settings)(variables, x)
    known = elbo(settings)(variables, x, keys(0, 4), located=found)
    out = elbo(settings)(variables, x, keys(0, 4))
    assert known.detection is None
    chex.assert_trees_all_close(known.terms, out.terms, rtol=1e-6)
    chex.assert_trees_all_equal(known.posterior.where.index, out.posterior.where.index)


def test_with_support_peaks_every_object_is_sampled_once_in_any_order(scene):
    settings, variables, x = scene
    drawn = {}
    for support in ("pixels", "peaks"):
        settings = dataclasses.replace(settings, support=support)
        drawn[support] = elbo(settings)(variables, x, keys(0, 4))
    out = drawn["peaks"]
    peaks = np.asarray(out.detection.peaks).reshape(4, -1)
    assert peaks.sum(1).max() > 1
    heights = np.asarray(out.detection.h_loc).reshape(4, -1)
    for image in range(4):
        count = int(out.posterior.count[image])
        left = sorted(np.flatnonzero(peaks[image]), key=lambda pixel: -heights[image, pixel])
        left = left[: settings.max_objects]
        assert count == len(left)
        for slot in range(count):
            index = int(out.posterior.where.index[image, slot])
            assert index in left
            log_q = -np.log(len(left))
            np.testing.assert_allclose(out.posterior.where.log_q[image, slot], log_q, atol=1e-4)
            left.remove(index)
    anywhere = drawn["pixels"].posterior
    assert not all(
        peaks[image, index]
        for image in range(4)
        for index in anywhere.where.index[image, : int(anywhere.count[image])]
    )


def test_a_low_peak_is_not_drawn_next_to_a_high_one():
    settings = paper(support="peaks", peak_radius=2)
    h_loc = jnp.zeros((1, 16, 16)).at[0, 3, 3].set(300.0).at[0, 3, 4].set(299.0)
    h_loc = h_loc.at[0, 12, 12].set(1.01 * settings.threshold_for((16, 16)))
    _, logits, pixel, _ = inference.location_posterior(settings, inference.detect(settings, h_loc))
    assert pixel[0, :2].tolist() == [3 * 16 + 3, 12 * 16 + 12]
    assert logits[0, 1] - logits[0, 2] > 29


def test_other_supports_are_refused():
    with pytest.raises(ValueError, match="support='all': expected one of 'pixels', 'peaks'"):
        paper(support="all")


def test_the_location_network_can_be_frozen(scene):
    """Its batch statistics stay; that it has no gradient is the step's affair."""
    settings, variables, x = scene
    for train in (("location", "decoder"), ("decoder",)):
        _, batch_stats = elbo(settings, train)(variables, x, keys(0, 4), temperature=0.5)
        for name in ("location", "decoder"):
            before = variables["batch_stats"][name]
            change = jax.tree.map(jnp.subtract, batch_stats[name], before)
            assert bool(optax.global_norm(change) > 0) == (name in train)


def test_colour_adds_one_term_per_channel():
    x = jnp.zeros((1, 4, 4, 3)).at[0, 1, 1].set(jnp.array([1.0, 0.0, 1.0]))
    intensity = jnp.full((1, 4, 4, 3), 0.25)
    expected = 2 * np.log(0.25) + 46 * np.log(0.75)
    np.testing.assert_allclose(generative.log_likelihood(x, intensity), [expected], rtol=1e-4)


# --- transformations ---------------------------------------------------------


def test_vmap_and_pmap_give_what_a_loop_gives(scene):
    settings, variables, x = scene
    per_group = keys(0, 4).reshape(2, 2)
    groups = x.reshape(2, 2, *x.shape[1:])

    def one(x, keys):
        bound = model.bind(objective.elbo, module_of(settings))
        return bound(variables, x, keys, temperature=0.5).terms

    looped = [jax.jit(one)(g, k) for g, k in zip(groups, per_group, strict=True)]
    looped = jax.tree.map(lambda *a: jnp.stack(a), *looped)
    mapped = jax.jit(jax.vmap(one))(groups, per_group)
    on_device = jax.pmap(one)(groups[:1], per_group[:1])
    for a, b, c in zip(looped, mapped, on_device, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3)
        np.testing.assert_allclose(a[:1], c, rtol=1e-3)


def test_prior_samples_have_the_counts_requested(scene):
    settings, variables, _ = scene
    sample = compiled(generative.sample_prior, settings, static=("canvas",))
    only = jnp.tile(jnp.where(jnp.arange(5) == 4, 0.0, -jnp.inf), (200, 1))
    drawn = sample(variables, keys(0, 200), canvas=(12, 12), count_logits=only)
    assert (drawn.count == 4).all()
    assert drawn.appearance.shape == (200, 4, settings.latent_size)
    assert all(len(set(row)) == 4 for row in drawn.pixel.tolist())
