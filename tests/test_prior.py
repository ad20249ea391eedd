"""p(z_app), against scipy, quadrature and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from bfloat16 import on_tpu
from jax.test_util import check_grads
from small_models import compiled, initialised, small

from lavae_jax import gaussian, generative, prior
from lavae_jax.gaussian import Gaussian
from lavae_jax.prior import Mixture


def mixture(components=4, latent_size=3, seed=0, log_variance=(-2.0, 0.5)):
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(components, latent_size))
    log_variance = rng.uniform(*log_variance, mean.shape)
    features = gaussian.to_features(Gaussian(mean, log_variance)).T
    logits = rng.normal(size=components)
    return Mixture(*(jnp.asarray(a, jnp.float32) for a in (logits, features)))


SHARE = prior.STANDARD_SHARE
log_density = jax.jit(prior.log_density)


def log_density_by_scipy(mixture, z):
    z = np.asarray(z, np.float64)
    mean, log_variance = (np.asarray(a.T, np.float64) for a in mixture.components)
    log_weights = scipy.special.log_softmax(np.asarray(mixture.logits, np.float64))
    each = scipy.stats.norm(mean, np.exp(log_variance / 2)).logpdf(z[:, None])
    learnt = scipy.special.logsumexp(each.sum(-1) + log_weights, axis=1)
    standard = scipy.stats.norm().logpdf(z).sum(-1)
    return np.logaddexp(np.log(1 - SHARE) + learnt, np.log(SHARE) + standard)


# --- the density -------------------------------------------------------------


# Of trained models, the narrowest components have variances of about exp(-5).
@pytest.mark.parametrize(("lowest", "error"), [(-2.0, 1e-5), (-5.0, 3e-4), (-7.9, 5e-3)])
@pytest.mark.parametrize("transform", [jax.jit, on_tpu])
def test_the_density_is_that_of_scipy(lowest, error, transform):
    made = mixture(50, 32, log_variance=(lowest, 0.0))
    each = jax.tree.map(jnp.transpose, made.components)
    near = gaussian.sample(each, np.random.default_rng(1).normal(size=32))
    z = jnp.concatenate([near, 3 * near[:5]])
    ours = transform(prior.log_density)(made, z)
    expected = log_density_by_scipy(made, z)
    np.testing.assert_allclose(ours[:50], expected[:50], atol=32 * error)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=32 * error)


def test_the_density_integrates_to_one():
    made = mixture(latent_size=1)
    z = np.linspace(-12, 12, 20_001)
    density = np.exp(log_density(made, jnp.asarray(z, jnp.float32)[:, None]))
    np.testing.assert_allclose(scipy.integrate.trapezoid(density, z), 1, rtol=1e-4)


@pytest.mark.parametrize("entries", [1, 8, 4 * 7])
def test_splitting_appearances_into_parts_does_not_change_their_densities(entries, monkeypatch):
    made, z = mixture(), jax.random.normal(jax.random.key(0), (17, 3))
    whole = prior.log_density(made, z)
    monkeypatch.setattr(prior, "ENTRIES", entries)
    np.testing.assert_allclose(prior.log_density(made, z), whole, rtol=1e-5)


def test_memory_does_not_grow_with_the_number_of_appearances():
    made = jax.eval_shape(lambda: prior.standard(None, 10_000, 32))

    def temporary_bytes(size):
        z = jax.ShapeDtypeStruct((size, 32), jnp.float32)
        compiled = jax.jit(prior.log_density).lower(made, z).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(20_000) < 100e6  # a matrix [P, K] has 800 MB


def test_an_object_without_a_component_costs_little_more_than_under_the_paper_s_prior():
    made = mixture(8, 32, log_variance=(-7.0, -6.0))
    z = 1.5 * jax.random.normal(jax.random.key(0), (50, 32))
    standard = scipy.stats.norm().logpdf(np.asarray(z)).sum(-1)
    np.testing.assert_allclose(standard - log_density(made, z), -np.log(SHARE), rtol=1e-4)


def test_only_near_components_contribute_to_the_density():
    """They have the weights that they have among all; none is evaluated twice."""
    made, z = mixture(9), jax.random.normal(jax.random.key(0), (6, 3))
    near = jnp.argsort(jax.random.uniform(jax.random.key(1), (6, 9)), axis=1)
    whole = log_density(made, z)
    np.testing.assert_allclose(log_density(made, z, near), whole, rtol=1e-5)
    some = log_density(made, z, near[:, :4])
    assert (some < whole).all()
    for i in range(6):
        left_out = np.asarray(made.logits, np.float64)
        left_out[near[i, 4:]] = -np.inf
        share = np.exp(scipy.special.logsumexp(left_out) - scipy.special.logsumexp(made.logits))
        standard = SHARE * np.exp(scipy.stats.norm().logpdf(np.asarray(z[i])).sum())
        alone = np.exp(log_density_by_scipy(made._replace(logits=left_out), z[i : i + 1])[0])
        expected = np.log(share * (alone - standard) + standard)
        np.testing.assert_allclose(some[i], expected, rtol=1e-4)


# --- divergence --------------------------------------------------------------


def test_one_standard_component_is_the_paper_s_prior():
    rng = np.random.default_rng(0)
    q = Gaussian(*(jnp.asarray(rng.normal(size=(9, 32)), jnp.float32) for _ in range(2)))
    noise = jnp.asarray(rng.normal(size=(9, 32)), jnp.float32)
    one = prior.divergence(prior.standard(None, 1, 32), q, noise)
    np.testing.assert_allclose(
        one.log_ratio, prior.divergence(None, q, noise).log_ratio, rtol=1e-5, atol=1e-4
    )
    np.testing.assert_array_equal(one.kl, one.log_ratio)


def test_the_mean_of_the_estimate_is_the_kl():
    made = mixture(latent_size=1)
    q = Gaussian(jnp.array([[0.4]]), jnp.array([[-1.0]]))
    density = scipy.stats.norm(0.4, np.exp(-0.5))

    def integrand(z):
        return density.pdf(z) * (density.logpdf(z) - log_density_by_scipy(made, np.array([[z]]))[0])

    exact, _ = scipy.integrate.quad(integrand, -6, 6)
    noise = jax.random.normal(jax.random.key(0), (200_000, 1))
    many = jax.tree.map(lambda a: jnp.broadcast_to(a, noise.shape), q)
    kl = np.asarray(prior.divergence(made, many, noise).kl)
    np.testing.assert_allclose(kl.mean(), exact, atol=4 * kl.std() / np.sqrt(len(kl)))


def test_gradients_against_finite_differences():
    with jax.enable_x64(True):
        made = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), mixture())
        rng = np.random.default_rng(0)
        features, noise = rng.normal(size=(5, 6)), rng.normal(size=(5, 3))
        choice = rng.uniform(size=5)
        near = np.array([[0, 1], [2, 3], [3, 0], [1, 2], [0, 2]])

        @jax.jit
        def everything(made, features):
            q = gaussian.from_features(features)
            return (
                prior.divergence(made, q, noise),
                prior.divergence(made, q, noise, near),
                prior.moments(made, 3),
                made.perplexity,
                prior.sample(made, noise, choice),
            )

        check_grads(everything, (made, jnp.asarray(features)), order=1, eps=1e-6, rtol=1e-4)


# --- samples -----------------------------------------------------------------


def test_scenes_of_the_prior_have_appearances_that_follow_the_density():
    """Chi-square over the cells of a grid in two of three dimensions."""
    settings = small(prior={"kind": "mixture", "components": 3})
    made = mixture(3, seed=1)
    variables = initialised(settings)
    variables = {**variables, "params": {**variables["params"], "prior": made}}
    sample = compiled(generative.sample_prior, settings, static=("canvas",))
    full = jnp.tile(jnp.where(jnp.arange(5) == 4, 0.0, -jnp.inf), (10_000, 1))
    scenes = sample(
        variables, jax.random.split(jax.random.key(0), 10_000), canvas=(4, 4), count_logits=full
    )
    z = np.asarray(scenes.appearance).reshape(-1, 3)[:, :2]
    mean, log_variance = (np.asarray(a.T, np.float64)[:, :2] for a in made.components)
    edges = np.array([-np.inf, -1.5, -0.8, -0.3, 0.1, 0.5, 0.9, 1.5, np.inf])
    below = scipy.stats.norm(mean[..., None], np.exp(log_variance / 2)[..., None]).cdf(edges)
    within = np.diff(below)  # [K, 2, cells]
    weights = scipy.special.softmax(np.asarray(made.logits, np.float64))
    expected = np.einsum("k,ki,kj->ij", weights, within[:, 0], within[:, 1])
    standard = np.diff(scipy.stats.norm().cdf(edges))
    expected = (1 - SHARE) * expected + SHARE * np.outer(standard, standard)
    cells = [np.searchsorted(edges, coordinate) - 1 for coordinate in z.T]
    observed = np.zeros((8, 8))
    np.add.at(observed, tuple(cells), 1)
    likely = len(z) * expected > 10
    rest = [a[~likely].sum() for a in (observed, len(z) * expected)]
    found = scipy.stats.chisquare(
        [*observed[likely], rest[0]], [*(len(z) * expected)[likely], rest[1]]
    )
    assert likely.sum() > 20
    assert found.pvalue > 1e-3


def test_components_are_drawn_by_their_weights():
    """Of many, some with next to no weight, by numbers that reach both ends of 0..1; the share
    of N(0, I), which is its noise, is at the upper end."""
    logits = np.linspace(-12, 3, 50).astype(np.float32)
    mean = np.arange(1, 51, dtype=np.float32)[:, None]
    made = Mixture(jnp.asarray(logits), jnp.asarray(np.concatenate([mean, 0 * mean], 1).T))
    choice = (np.arange(100_000) + 0.5) / 100_000
    choice[0], choice[-1] = 0, np.nextafter(np.float32(1), np.float32(0))
    drawn = prior.sample(made, jnp.zeros((100_000, 1)), jnp.asarray(choice, jnp.float32))
    shares = np.bincount(np.asarray(drawn[:, 0], int), minlength=51) / 100_000
    expected = [SHARE, *(1 - SHARE) * scipy.special.softmax(logits)]
    np.testing.assert_allclose(shares, expected, atol=3e-5)
    assert not drawn[-1, 0]


def test_samples_and_moments_of_the_paper_s_prior_are_those_of_its_noise():
    noise = jax.random.normal(jax.random.key(0), (4, 3))
    assert prior.sample(None, noise, jnp.zeros(4)) is noise
    for ours, expected in zip(prior.moments(None, 3), (0, 1), strict=True):
        np.testing.assert_array_equal(ours, [expected] * 3)


def test_moments_are_those_of_samples():
    made, rng = mixture(seed=2), np.random.default_rng(0)
    noise, choice = rng.normal(size=(100_000, 3)), rng.uniform(size=100_000)
    z = np.asarray(prior.sample(made, jnp.asarray(noise), jnp.asarray(choice)))
    mean, deviation = prior.moments(made, 3)
    np.testing.assert_allclose(z.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(z.std(0), deviation, rtol=0.01)


# --- components --------------------------------------------------------------


def test_features_and_gaussians_are_inverse_to_each_other():
    q = Gaussian(np.array([[0.3, -2.0]]), np.array([[-3.5, 1.0]]))
    again = gaussian.from_features(gaussian.to_features(q))
    for ours, expected in zip(again, q, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_initial_components_are_at_encodings_with_variance_one_minus_theirs():
    encodings = np.array([[0.5, 2.0], [-0.5, -2.0]], np.float32)
    mean, log_variance = prior.at_encodings(encodings).components
    np.testing.assert_array_equal(mean.T, encodings)
    np.testing.assert_allclose(np.exp(log_variance).T, [[0.75, 0.03]] * 2, rtol=1e-5)


def test_a_component_that_is_far_away_loses_its_weight_and_does_no_harm():
    alive = mixture(3)
    far = jnp.concatenate([jnp.full((3, 1), 1e3), jnp.full((3, 1), -1e6)])
    dead = Mixture(jnp.append(alive.logits, 0.0), jnp.concatenate([alive.features, far], axis=1))
    z = jax.random.normal(jax.random.key(0), (20, 3))
    kept = np.asarray(jax.nn.softmax(dead.logits)[:3].sum(), np.float64)
    standard = SHARE * np.exp(scipy.stats.norm().logpdf(np.asarray(z, np.float64)).sum(-1))
    learnt = np.exp(log_density_by_scipy(alive, z)) - standard
    expected = np.log(kept * learnt + standard)
    np.testing.assert_allclose(log_density(dead, z), expected, rtol=1e-3)
    slope = jax.jit(jax.grad(lambda m: log_density(m, z).sum()))(dead)
    assert slope.logits[3] < 0
    np.testing.assert_array_equal(slope.features[:, 3], 0)
    assert np.isfinite(slope.features).all()


def test_perplexity_counts_the_components_in_use():
    features = jnp.zeros((2, 6))
    np.testing.assert_allclose(Mixture(jnp.zeros(6), features).perplexity, 6, rtol=1e-5)
    half = Mixture(jnp.array([0.0, 0, 0, -90, -90, -90]), features)
    np.testing.assert_allclose(half.perplexity, 3, rtol=1e-5)
