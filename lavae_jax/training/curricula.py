"""The phases of LAVAE's training.

The paper's curriculum is `warmup`, `elbo`: the location network follows the KL map of an auxiliary
VAE while everything is trained by the ELBO (App. B). The recipe `cpu` has `auxiliary`, `peaks`,
`appearance`: the auxiliary VAE first, then the location network (see `warmup`), and then the
ELBO, which leaves that frozen; `mixture` learns p(z_app) after it (see `mixture`).

A new phase is a function of the config that returns a `Phase`, and a line in `PHASES`.
"""

import functools

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from lavae_jax import counting, diagnostics, generative, inference, model, objective, vae, warmup
from lavae_jax.diagnostics import Masked
from lavae_jax.training import mixture, phases, schedules, trainee
from lavae_jax.training.elbo import elbo_loss, elbo_metrics, means
from lavae_jax.training.phases import Phase, Prepared, Reconstruction, Task
from lavae_jax.training.trainee import Trainee

APPEARANCE = ("lavae.appearance", "lavae.decoder", "lavae.count_logits")


def task(config: ConfigDict) -> Task:
    lavae, auxiliary = trainee.settings(config)
    if (lavae.prior.kind == "mixture") != ("mixture" in config.curriculum.phases):
        raise ValueError(
            f"config.model.prior.kind={lavae.prior.kind!r}, but config.curriculum.phases="
            f"{tuple(config.curriculum.phases)}: a mixture, and no other prior, needs the phase "
            "'mixture'"
        )
    return Task(
        functools.partial(Trainee, lavae, auxiliary),
        phases.make(config, PHASES),
        _evaluate,
        _reconstruct,
    )


def _evaluate(module: Trainee, x, count, keys) -> dict[str, jax.Array | Masked]:
    out = objective.elbo(module.lavae, x, keys)
    metrics = {**elbo_metrics(out.terms), "inferred_count": out.count.astype(float)}
    if count is not None:
        metrics["count_accuracy"] = (out.count == count).astype(float)
    drawn, known = out.posterior, out.count if count is None else count
    return metrics | diagnostics.location_diagnostics(
        module.settings, out.detection, drawn.where.index, drawn.count, known
    )


def _reconstruct(module: Trainee, x) -> Reconstruction:
    scene = inference.infer(module.lavae, x)
    rendered = generative.render(module.lavae, scene)
    return Reconstruction(rendered, scene, generative.sprites(module.lavae, scene))


# --- the paper's -------------------------------------------------------------


def _joint_rates(config: ConfigDict, start: int) -> dict[str, optax.Schedule]:
    """From step `start` of the run on."""
    curriculum = config.curriculum
    steps = sum(curriculum[name].steps for name in curriculum.phases)
    rate = schedules.after(start, schedules.learning_rate(config.optimizer, steps))
    location = schedules.after(start, schedules.exponential(curriculum.location))
    return {"lavae.location": location, **dict.fromkeys(APPEARANCE, rate)}


def _joint_loss(config: ConfigDict, lavae, x, keys, step):
    """The ELBO after `step` steps of the run."""
    curriculum = config.curriculum
    return elbo_loss(
        config,
        lavae,
        x,
        keys,
        temperature=schedules.temperature(curriculum.temperature)(step),
        force_one=schedules.force_one(curriculum.warmup)(step),
    )


def _warmup(config: ConfigDict) -> Phase:
    """The ELBO, and h_loc follows the KL map of the auxiliary VAE (App. B)."""
    settings = config.curriculum.warmup
    auxiliary_weight = schedules.auxiliary_weight(settings)
    cell = trainee.settings(config)[1].cell

    def loss(module: Trainee, x, keys, step):
        auxiliary_keys, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        loss, metrics, out = _joint_loss(config, module.lavae, x, keys, step)
        auxiliary = vae.elbo(module.auxiliary, x, auxiliary_keys)
        canvas = x.shape[1:3]
        target = vae.kl_map(auxiliary.kl, cell, canvas)
        h_loc = out.detection.h_loc / module.settings.gamma_for(canvas)
        metrics["auxiliary_neg_elbo"] = -auxiliary.terms.elbo.mean()
        metrics["auxiliary_distance"] = warmup.distance(h_loc, target)
        loss += metrics["auxiliary_neg_elbo"]
        loss += auxiliary_weight(step) * metrics["auxiliary_distance"]
        return loss, metrics

    rates = _joint_rates(config, 0)
    rates["auxiliary"] = rates["lavae.decoder"]
    return Phase("warmup", settings.steps, loss, rates)


def _elbo(config: ConfigDict) -> Phase:
    """The ELBO alone, which trains everything."""
    start = config.curriculum.warmup.steps

    def loss(module: Trainee, x, keys, step):
        _, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        return _joint_loss(config, module.lavae, x, keys, step + start)[:2]

    return Phase("elbo", config.curriculum.elbo.steps, loss, _joint_rates(config, start))


# --- where objects are, then what they look like -----------------------------


def _auxiliary(config: ConfigDict) -> Phase:
    """The auxiliary VAE alone."""
    settings = config.curriculum.auxiliary

    def loss(module: Trainee, x, keys, step):
        loss = -vae.elbo(module.auxiliary, x, keys).terms.elbo.mean()
        return loss, {"auxiliary_neg_elbo": loss}

    rate = optax.constant_schedule(settings.learning_rate)
    return Phase("auxiliary", settings.steps, loss, {"auxiliary": rate})


def _peaks(config: ConfigDict) -> Phase:
    """The location network, on the peaks of the auxiliary VAE's KL map."""
    settings = config.curriculum.peaks
    cell = trainee.settings(config)[1].cell
    if not 1 <= settings.shifts <= cell:
        raise ValueError(
            f"config.curriculum.peaks.shifts={settings.shifts} must be from 1 to {cell}, the "
            "pixels of a latent of the auxiliary VAE"
        )

    def loss(module: Trainee, x, keys, step):
        lavae = module.settings
        keys, augment_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        x = warmup.augment(x, augment_keys, settings.augmented_share)
        kl_map = warmup.mean_kl_map(module.auxiliary, x, keys, settings.shifts)
        peaks = counting.peaks(kl_map, settings.threshold, lavae.peak_radius)
        peaks = warmup.centre(peaks, x, lavae.sprite_size // 2 - 1, settings.centrings)
        h_loc = inference.location_logits(module.lavae, x)
        logits = inference.object_logits(lavae, h_loc)
        loss = warmup.detection_loss(
            logits, peaks, settings.positive_weight, settings.localisation_weight
        )
        inferred = inference.detect(lavae, h_loc).count
        counts = {"inferred_count": inferred, "target_count": peaks.sum((1, 2))}
        return loss, {"detection_loss": loss, **means(counts)}

    return Phase("peaks", settings.steps, loss, {"lavae.location": schedules.cosine(settings)})


def _appearance(config: ConfigDict) -> Phase:
    """The ELBO under p(z_app) = N(0, I). The location network is frozen."""
    settings = config.curriculum.appearance

    def loss(module: Trainee, x, keys, step, located=None):
        return elbo_loss(config, module.lavae, x, keys, located=located, standard_prior=True)[:2]

    rates = dict.fromkeys(APPEARANCE, schedules.cosine(settings))
    # All pixels of all images would not fit into memory.
    prepare = _locate_objects if config.model.support == "peaks" else None
    return Phase("appearance", settings.steps, loss, rates, prepare)


def _locate_objects(module: Trainee, variables, images, saved) -> Prepared:
    """q(z_loc | x) of each training image."""
    del saved
    if images.varies:
        return Prepared()
    locate = model.compiled(_locate, module)
    located = [jax.tree.map(np.asarray, locate(variables, x)) for x in images.batches()]
    return Prepared(cache={"located": phases.gather(located, len(images))})


def _locate(module: Trainee, x: jax.Array) -> inference.LocationPosterior:
    return inference.infer_locations(module.lavae, x)


def _mixture(config: ConfigDict) -> Phase:
    """The ELBO under a mixture, which is trained as well. The location network is frozen."""
    settings = config.curriculum.mixture

    def loss(module: Trainee, x, keys, step, located=None):
        loss, metrics, _ = elbo_loss(config, module.lavae, x, keys, located=located)
        return loss, {**metrics, "components": module.lavae.prior.perplexity}

    rates = dict.fromkeys((*APPEARANCE, "lavae.prior"), schedules.cosine(settings))
    prepare = functools.partial(mixture.prepare, with_cache=config.model.support == "peaks")
    saved = mixture.initial_saved(config.model.prior.components)
    return Phase("mixture", settings.steps, loss, rates, prepare, saved)


PHASES = {
    "warmup": _warmup,
    "elbo": _elbo,
    "auxiliary": _auxiliary,
    "peaks": _peaks,
    "appearance": _appearance,
    "mixture": _mixture,
}
