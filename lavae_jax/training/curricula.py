"""The phases of LAVAE's training.

- The paper's curriculum is `warmup`, `elbo`: everything is trained by the ELBO, while the location
  network follows the KL map of an auxiliary VAE (App. B).
- The recipe `cpu` has `auxiliary`, `peaks`, `appearance`: first the auxiliary VAE, then the
  location network (see `warmup`), then the ELBO with a frozen location network. The recipe
  `mixture` adds a phase `mixture`, which learns p(z_app) (see `mixture`).
- The recipe `sleep` has `auxiliary`, `sleep`, `appearance`, `overlap`: the location network, and at
  the end the appearance network, learn from scenes that are composed of isolated objects (see
  `sleep`). `sleep_again` follows `sleep` where objects of the training images overlap.
- The recipe `grey` of custom images has `pasted`, `portraits`: both networks learn from grey scenes
  (see `pasting`).

To add a phase, write a function of the config that returns a `Phase`, and add it to `PHASES`.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from lavae_jax import (
    counting,
    diagnostics,
    generative,
    inference,
    model,
    networks,
    objective,
    vae,
    warmup,
)
from lavae_jax.diagnostics import Masked
from lavae_jax.training import calibration, mixture, pasting, phases, schedules, sleep, trainee
from lavae_jax.training.elbo import elbo_loss, elbo_metrics, means
from lavae_jax.training.phases import Phase, Prepared, Reconstruction, Task
from lavae_jax.training.trainee import Trainee

Cache = dict[str, inference.LocationPosterior]
APPEARANCE = ("lavae.appearance", "lavae.decoder", "lavae.count_logits")


def task(config: ConfigDict) -> Task:
    """Makes the task of training LAVAE.

    Args:
        config: the run's config, of kind "lavae".

    Returns:
        LAVAE with the auxiliary VAE, its phases and its metrics.

    Raises:
        ValueError: if settings of the config are invalid or contradict each other.
    """
    lavae, auxiliary = trainee.settings(config)
    if (lavae.prior.kind == "mixture") != ("mixture" in config.curriculum.phases):
        raise ValueError(
            f"config.model.prior.kind={lavae.prior.kind!r}, but config.curriculum.phases="
            f"{tuple(config.curriculum.phases)}: the phase 'mixture' is required for a mixture, "
            "and not allowed for any other prior"
        )
    return Task(
        functools.partial(Trainee, lavae, auxiliary),
        phases.make(config, PHASES),
        _evaluate,
        _reconstruct,
    )


def _evaluate(module: Trainee, x, count, keys) -> dict[str, jax.Array | Masked]:
    out = objective.elbo(module.lavae, x, keys)
    metrics: dict[str, jax.Array | Masked]
    metrics = {**elbo_metrics(out.terms), "inferred_count": out.count.astype(float)}
    if count is not None:
        metrics["count_accuracy"] = (out.count == count).astype(float)
    drawn, known = out.posterior, out.count if count is None else count
    assert out.detection is not None  # no locations were given
    return metrics | diagnostics.location_diagnostics(
        module.settings, out.detection, drawn.where.index, drawn.count, known
    )


def _reconstruct(module: Trainee, x) -> Reconstruction:
    scene = inference.infer(module.lavae, x)
    rendered = generative.render(module.lavae, scene)
    return Reconstruction(rendered, scene, generative.sprites(module.lavae, scene))


# --- the paper's curriculum --------------------------------------------------


def _joint_rates(config: ConfigDict, start: int) -> dict[str, optax.Schedule]:
    """The learning rates of a phase that begins at step `start` of the run."""
    curriculum = config.curriculum
    steps = sum(curriculum[name].steps for name in curriculum.phases)
    rate = schedules.after(start, schedules.learning_rate(config.optimizer, steps))
    location = schedules.after(start, schedules.exponential(curriculum.location))
    return {"lavae.location": location, **dict.fromkeys(APPEARANCE, rate)}


def _joint_loss(config: ConfigDict, lavae, x, keys, step):
    """The ELBO after `step` steps of the run, as a loss."""
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
    """The ELBO alone, by which everything is trained."""
    start = config.curriculum.warmup.steps

    def loss(module: Trainee, x, keys, step):
        _, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        return _joint_loss(config, module.lavae, x, keys, step + start)[:2]

    return Phase("elbo", config.curriculum.elbo.steps, loss, _joint_rates(config, start))


# --- first the location network, then appearances ----------------------------


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
    _check_shifts(config, "peaks")

    def loss(module: Trainee, x, keys, step):
        lavae = module.settings
        keys, augment_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        x = warmup.augment(x, augment_keys, settings.augmented_share)
        peaks = _map_peaks(module, x, keys, settings)
        h_loc = inference.location_logits(module.lavae, x)
        logits = inference.object_logits(lavae, h_loc)
        loss = warmup.detection_loss(
            logits, peaks, settings.positive_weight, settings.localisation_weight
        )
        inferred = inference.detect(lavae, h_loc).count
        counts = {"inferred_count": inferred, "target_count": peaks.sum((1, 2))}
        return loss, {"detection_loss": loss, **means(counts)}

    return Phase("peaks", settings.steps, loss, {"lavae.location": schedules.cosine(settings)})


def _check_shifts(config: ConfigDict, phase: str) -> None:
    shifts, cell = config.curriculum[phase].shifts, trainee.settings(config)[1].cell
    if not 1 <= shifts <= cell:
        raise ValueError(
            f"config.curriculum.{phase}.shifts={shifts} must be from 1 to {cell}, the side of a "
            "cell of the auxiliary VAE's grid, in pixels"
        )


def _map_peaks(module: Trainee, x, keys, settings: ConfigDict) -> jax.Array:
    """Peaks of the auxiliary VAE's KL map, [B, H, W], moved to the centres of mass."""
    size = module.settings.sprite_size
    kl_map = warmup.mean_kl_map(module.auxiliary, x, keys, settings.shifts)
    peaks = counting.peaks(kl_map, settings.threshold, size // 2)
    return warmup.centre(peaks, x, size // 2 - 1, settings.centrings)


def _sleep(config: ConfigDict, name: str = "sleep") -> Phase:
    """The location network, on scenes that are composed of isolated objects.

    The auxiliary VAE detects these objects in the phase `sleep`. In `sleep_again` the location
    network does, which separates overlapping objects.
    """
    settings, own = config.curriculum.sleep, config.curriculum[name]
    _check_shifts(config, "sleep")

    def prepare(module: Trainee, variables, images, saved, cache=None) -> Prepared:
        collect = _objects_of_map if name == "sleep" else _objects_of_network
        return Prepared(constants={"objects": collect(module, variables, images, settings)})

    def loss(module: Trainee, x, keys, step, objects):
        scenes = sleep.compose(
            objects,
            keys,
            x.shape[1:3],
            settings.max_objects,
            settings.augmented_share,
            settings.distorted_share,
        )
        ignored = scenes.ambiguous if settings.distorted_share else None
        return _composed_loss(module, scenes, settings, ignored)

    rates = {"lavae.location": schedules.cosine(own)}
    return Phase(name, own.steps, loss, rates, prepare)


def _composed_loss(
    module: Trainee, scenes: sleep.ComposedScenes, settings: ConfigDict, ignored=None
):
    """The loss and metrics of the location network on scenes whose objects are known."""
    h_loc = inference.location_logits(module.lavae, scenes.image)
    loss = warmup.detection_loss(
        inference.object_logits(module.settings, h_loc),
        scenes.marked,
        settings.positive_weight,
        settings.localisation_weight,
        ignored,
    )
    counts = {
        "inferred_count": inference.detect(module.settings, h_loc).count,
        "target_count": scenes.count,
    }
    return loss, {"detection_loss": loss, **means(counts)}


def _objects_of_map(module: Trainee, variables, images, settings: ConfigDict) -> np.ndarray:
    """Isolated objects, detected by the auxiliary VAE."""

    def detect(module, x):
        keys = jax.random.split(jax.random.key(0), len(x))
        peaks = _map_peaks(module, x, keys, settings).reshape(len(x), -1)
        is_peak, pixel = jax.lax.top_k(peaks.astype(np.int32), module.settings.max_objects)
        return pixel, is_peak.sum(1)

    return sleep.collect(module, variables, images, detect, settings.objects)


def _objects_of_network(module: Trainee, variables, images, settings: ConfigDict) -> np.ndarray:
    """Isolated objects, detected by the location network."""

    def detect(module, x):
        detection = inference.detect(module.settings, inference.location_logits(module.lavae, x))
        pixel = inference.peak_locations(module.settings, detection).index
        return pixel, detection.count

    return sleep.collect(module, variables, images, detect, settings.objects)


def _appearance(config: ConfigDict) -> Phase:
    """The ELBO under p(z_app) = N(0, I). The location network is frozen.

    After a phase `sleep`, the location network is calibrated before the first step.
    """
    settings, names = config.curriculum.appearance, config.curriculum.phases
    asleep = config.curriculum.sleep if "sleep" in names else None
    collect = _objects_of_network if "sleep_again" in names else _objects_of_map

    def loss(module: Trainee, x, keys, step, located=None):
        return elbo_loss(config, module.lavae, x, keys, located=located, standard_prior=True)[:2]

    def prepare(module: Trainee, variables, images, saved, cache=None) -> Prepared:
        if not asleep:
            return Prepared(cache=_locate_objects(config, module, variables, images))
        calibrated = _calibrate(module, variables, images, saved, asleep, collect)
        for part, value in calibrated.params.items():
            params = model.with_part(variables["params"], part, value)
            variables = {**variables, "params": params}
        return calibrated._replace(cache=_locate_objects(config, module, variables, images))

    rates = dict.fromkeys(APPEARANCE, schedules.cosine(settings))
    saved = {"calibration": np.zeros(2, np.float32)} if asleep else None
    return Phase("appearance", settings.steps, loss, rates, prepare, saved)


def _overlap(config: ConfigDict) -> Phase:
    """Like `appearance`, but q(z_app | z_loc, x) also learns overlap from composed scenes."""
    settings, asleep = config.curriculum.overlap, config.curriculum.sleep

    def loss(module: Trainee, x, keys, step, objects, located=None):
        keys, sleep_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        elbo = elbo_loss(config, module.lavae, x, keys, located=located, standard_prior=True)
        loss, metrics, _ = elbo
        metrics["sleep_appearance"] = sleep.appearance_loss(
            module, objects, sleep_keys, settings.max_neighbours, asleep.augmented_share
        )
        return loss + settings.sleep_weight * metrics["sleep_appearance"], metrics

    def prepare(module: Trainee, variables, images, saved, cache=None) -> Prepared:
        objects = _objects_of_network(module, variables, images, asleep)
        located = cache or _locate_objects(config, module, variables, images)
        return Prepared(cache=located, constants={"objects": objects})

    rates = dict.fromkeys(APPEARANCE, schedules.cosine(settings))
    return Phase("overlap", settings.steps, loss, rates, prepare)


def _calibrate(
    module: Trainee, variables, images, saved, settings: ConfigDict, collect: Callable
) -> Prepared:
    """Calibrates the location network when a phase begins. The scale and shift are saved."""
    if saved is not None:
        return Prepared(saved=saved)
    objects = collect(module, variables, images, settings)
    canvas = next(iter(images.batches())).shape[1:3]

    def compose(objects, keys):
        return sleep.compose(objects, keys, canvas, settings.max_objects, augmented_share=0.0)

    return _calibrated(module, variables, objects, compose)


def _calibrated(module: Trainee, variables, objects, compose: calibration.Compose) -> Prepared:
    """The calibrated location network; the scale and shift are to be saved."""
    scale, shift = calibration.fit(module, variables, objects, compose)
    location = networks.scale_logits(variables["params"]["lavae"]["location"], scale, shift)
    saved = {"calibration": np.array([scale, shift], np.float32)}
    return Prepared({"lavae.location": location}, saved)


# --- grey images ---------------------------------------------------------------


def _pasted(config: ConfigDict) -> Phase:
    """The location network, on grey scenes that are pasted together from isolated objects."""
    settings = config.curriculum.pasted

    def prepare(module: Trainee, variables, images, saved, cache=None) -> Prepared:
        return Prepared(constants={"objects": _grey_objects(module, images, settings.objects)})

    def loss(module: Trainee, x, keys, step, objects):
        scenes = pasting.compose(objects, keys, x.shape[1:3], settings.max_objects)
        return _composed_loss(module, scenes, settings)

    rates = {"lavae.location": schedules.cosine(settings)}
    return Phase("pasted", settings.steps, loss, rates, prepare)


def _portraits(config: ConfigDict) -> Phase:
    """The appearance network and the decoder, on objects with neighbours in pasted scenes.

    The location network is calibrated before the first step.
    """
    settings, pasted = config.curriculum.portraits, config.curriculum.pasted

    def prepare(module: Trainee, variables, images, saved, cache=None) -> Prepared:
        objects = _grey_objects(module, images, pasted.objects)
        constants = {"objects": objects}
        if images.is_sample:
            return Prepared(saved=np.zeros(2, np.float32), constants=constants)
        if saved is not None:
            return Prepared(saved=saved, constants=constants)
        canvas = next(iter(images.batches())).shape[1:3]

        def compose(objects, keys):
            return pasting.compose(objects, keys, canvas, pasted.max_objects)

        calibrated = _calibrated(module, variables, objects, compose)
        return calibrated._replace(constants=constants)

    def loss(module: Trainee, x, keys, step, objects):
        return pasting.portrait_loss(module, objects, keys, x.shape[1:3], pasted.max_objects)

    parts = ("lavae.appearance", "lavae.decoder")
    rates = dict.fromkeys(parts, schedules.cosine(settings))
    saved = {"calibration": np.zeros(2, np.float32)}
    return Phase("portraits", settings.steps, loss, rates, prepare, saved)


READINGS = 8  # passes over images that vary, to find objects


def _grey_objects(module: Trainee, images, number: int) -> np.ndarray:
    """Isolated objects of normalised images."""
    side, channels = module.settings.sprite_size, module.settings.channels
    if images.is_sample:
        return np.zeros((number, side, side, channels), np.float32)
    readings = range(READINGS if images.varies else 1)
    batches = (batch for reading in readings for batch in images.batches(reading))
    return pasting.collect(batches, side, channels, number)


# --- what the phases share -------------------------------------------------------


def _locate_objects(config: ConfigDict, module: Trainee, variables, images) -> Cache | None:
    """q(z_loc | x) of each training image, by a frozen location network.

    None if it cannot be cached: if images vary, or if q is over all pixels, which would not fit
    into memory.
    """
    if images.varies or config.model.support != "peaks":
        return None
    locate = model.compiled(_locate, module)
    located = [jax.tree.map(np.asarray, locate(variables, x)) for x in images.batches()]
    return {"located": phases.gather(located, len(images))}


def _locate(module: Trainee, x: jax.Array) -> inference.LocationPosterior:
    return inference.infer_locations(module.lavae, x)


def _mixture(config: ConfigDict) -> Phase:
    """The ELBO under a mixture, which is also trained. The location network is frozen."""
    settings = config.curriculum.mixture

    def loss(module: Trainee, x, keys, step, located=None):
        loss, metrics, _ = elbo_loss(config, module.lavae, x, keys, located=located)
        return loss, {**metrics, "components": module.lavae.prior.perplexity}

    rates = dict.fromkeys((*APPEARANCE, "lavae.prior"), schedules.cosine(settings))
    prepare = functools.partial(mixture.prepare, with_cache=config.model.support == "peaks")
    saved = mixture.initial_saved(config.model.prior.components)
    return Phase("mixture", settings.steps, loss, rates, prepare, saved)


PHASES: dict[str, Callable[..., Phase]] = {
    "warmup": _warmup,
    "elbo": _elbo,
    "auxiliary": _auxiliary,
    "peaks": _peaks,
    "sleep": _sleep,
    "sleep_again": functools.partial(_sleep, name="sleep_again"),
    "appearance": _appearance,
    "overlap": _overlap,
    "mixture": _mixture,
    "pasted": _pasted,
    "portraits": _portraits,
}
