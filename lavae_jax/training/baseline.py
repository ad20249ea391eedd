"""Training of the baseline, a VAE on a grid, with an optional first phase on crops (App. B)."""

import functools

import jax
from ml_collections import ConfigDict

from lavae_jax import vae
from lavae_jax.training import phases, schedules
from lavae_jax.training.elbo import elbo_metrics, means
from lavae_jax.training.phases import Phase, Reconstruction, Task
from lavae_jax.vae import GridVAE


def task(config: ConfigDict) -> Task:
    """Makes the task of training the baseline.

    Args:
        config: the run's config, of kind "baseline".

    Returns:
        The VAE, its phases and its metrics.
    """
    settings = vae.baseline_settings(config.model)

    def make_module(train, axis_name):
        return settings.build(bool(train), axis_name)

    return Task(make_module, phases.make(config, {"crops": _crops, "elbo": _elbo}), _evaluate, _see)


def _evaluate(module: GridVAE, x, count, keys):
    del count
    return elbo_metrics(vae.elbo(module, x, keys).terms)


def _see(module: GridVAE, x) -> Reconstruction:
    return Reconstruction(vae.reconstruct(module, x))


def _crops(config: ConfigDict) -> Phase:
    """The weighted ELBO of squares that are cut out of the images."""
    side = config.curriculum.crops.side

    def loss(module: GridVAE, x, keys, step):
        crop_keys, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        return _loss(config, 0, module, vae.crop(x, crop_keys, side), keys, step)

    return _phase(config, "crops", 0, loss)


def _elbo(config: ConfigDict) -> Phase:
    """The ELBO of whole images, with weight β on the KL."""
    start = config.curriculum.crops.steps if "crops" in config.curriculum.phases else 0
    return _phase(config, "elbo", start, functools.partial(_loss, config, start))


def _loss(config, start, module: GridVAE, x, keys, step):
    terms = vae.elbo(module, x, keys).terms
    beta = schedules.beta(config.curriculum.beta)(step + start)
    return -terms.weighted_elbo(beta).mean(), means(elbo_metrics(terms))


def _phase(config, name, start, loss) -> Phase:
    steps = sum(config.curriculum[phase].steps for phase in config.curriculum.phases)
    rate = schedules.after(start, schedules.learning_rate(config.optimizer, steps))
    rates = dict.fromkeys(("encoder", "decoder"), rate)
    return Phase(name, config.curriculum[name].steps, loss, rates)
