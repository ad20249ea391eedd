"""What is trained: LAVAE, or the baseline. The training loop knows neither.

A task is a Flax module and the phases of its training; a phase has a loss, which is a
function of the bound module, and the learning rates of the parts that it trains.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import chex
import flax.linen as nn
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
    neighbours,
    objective,
    packing,
    placement,
    prior,
    vae,
    warmup,
)
from lavae_jax.diagnostics import Masked
from lavae_jax.locations import Locations
from lavae_jax.model import LAVAE, Variables
from lavae_jax.packing import Budget
from lavae_jax.scene import Scene
from lavae_jax.settings import LavaeSettings, PriorSettings, from_config
from lavae_jax.training import schedules
from lavae_jax.vae import GridVAE, GridVAESettings

Metrics = dict[str, jax.Array]


class Phase(NamedTuple):
    """A stretch of training.

    loss(module, x, keys, step, **memo) -> the loss and metrics, means over the images x
        [B, H, W, C]; `step` is the number of steps made before.
    learning_rates: a schedule for each part that is trained, by the part's path in the tree
        of parameters, such as "lavae.location". What is not named is frozen: it has no
        gradient, no optimiser, and uses its batch statistics without changing them.
    end: the number of steps after which the next phase begins; None for the last one.
    start(module, variables, batches) -> parts of the parameters, by their paths, as the phase
        finds them when it begins: made of the variables before it and of batches of training
        images [B, H, W, C], each image once. None if nothing changes.
    memo(module, x) -> what the loss need not compute itself, [B, ...] each: what frozen parts
        make of an image, computed once for each training image instead of at each step. None
        if there is no such thing.
    relate(params, memo) -> what the loss is given instead of the memo: made of that of all
        training images, on the host, and of frozen parameters. None if it is given the memo.
    """

    name: str
    loss: Callable[..., tuple[jax.Array, Metrics]]
    learning_rates: dict[str, optax.Schedule]
    end: int | None = None
    start: Callable[[nn.Module, Variables, Iterable[np.ndarray]], dict] | None = None
    memo: Callable[[nn.Module, jax.Array], dict[str, Any]] | None = None
    relate: Callable[[Variables, dict[str, Any]], dict[str, Any]] | None = None


class Task(NamedTuple):
    """
    module(train, axis_name) -> the module whose parts `train` are being trained.
    phases: one after the other.
    evaluate(module, x, count, keys) -> metrics of each image, [B] each, or `Masked` where not
        every image has them; count may be None.
    reconstruct(module, x) -> pixel means [B, H, W, C]; and the scene and its sprites, if the
        model knows objects.
    """

    module: Callable[[tuple[str, ...], str | None], nn.Module]
    phases: tuple[Phase, ...]
    evaluate: Callable[..., dict[str, jax.Array | Masked]]
    reconstruct: Callable[..., "Reconstruction"]

    def phase_after(self, step: int) -> Phase:
        """The phase of the step that follows `step` others."""
        return next(p for p in self.phases if p.end is None or step < p.end)

    def begins_after(self, step: int) -> bool:
        """Whether the step that follows `step` others is the first of its phase."""
        return step == 0 or step in (p.end for p in self.phases)


class Reconstruction(NamedTuple):
    """Images as a model sees them, to be drawn."""

    means: jax.Array  # [B, H, W, C]
    scene: Scene | None = None
    sprites: jax.Array | None = None  # [B, M, h, w, C]


def make(config: ConfigDict) -> Task:
    tasks = {"lavae": _lavae, "baseline": _baseline}
    if config.kind not in tasks:
        raise ValueError(f"config.kind={config.kind!r}: there are 'lavae', 'baseline'")
    return tasks[config.kind](config)


# --- LAVAE -------------------------------------------------------------------


class Trainee(nn.Module):
    """LAVAE, and the auxiliary VAE of its warm-up.

    Until the phase that trains it, p(z_app) is N(0, I) whatever it is to become. Sketches of the
    objects that a mixture's components started at are kept beside it, and not trained.
    """

    settings: LavaeSettings
    auxiliary_settings: GridVAESettings
    train: tuple[str, ...] = ()
    axis_name: str | None = None

    def setup(self):
        inside = tuple(p.removeprefix("lavae.") for p in self.train if p.startswith("lavae."))
        settings = self.settings
        if self.train and "prior" not in inside:
            settings = dataclasses.replace(settings, prior=PriorSettings(kind="normal"))
        self.lavae = LAVAE(settings, inside, self.axis_name)
        self.auxiliary = GridVAE(self.auxiliary_settings, "auxiliary" in self.train, self.axis_name)
        if self.settings.prior.kind == "mixture":
            shape = self.settings.prior.components, neighbours.NUMBERS
            self.started_at = self.param("started_at", nn.initializers.zeros, shape)

    def __call__(self) -> None:
        self.lavae()
        self.auxiliary()


def _lavae(config: ConfigDict) -> Task:
    settings = from_config(LavaeSettings, config.model)
    auxiliary = from_config(
        GridVAESettings,
        config.auxiliary,
        architecture="auxiliary",
        channels=settings.channels,
        activations=settings.activations,
        packed_pixels=settings.packed_pixels,
    )
    curricula = {"joint": _joint, "phased": _phased}
    kind = config.curriculum.kind
    if kind not in curricula:
        raise ValueError(f"config.curriculum.kind={kind!r}: there are 'joint', 'phased'")
    if (settings.prior.kind == "mixture") != (kind == "phased" and "mixture" in config.curriculum):
        raise ValueError(
            f"config.model.prior.kind={settings.prior.kind!r}: a mixture, and nothing else, is "
            "trained by config.curriculum.mixture in a curriculum of kind 'phased'"
        )
    return Task(
        functools.partial(Trainee, settings, auxiliary),
        curricula[kind](config, auxiliary.cell),
        _evaluate_lavae,
        _reconstruct_scene,
    )


def _evaluate_lavae(module: Trainee, x, count, keys) -> dict[str, jax.Array | Masked]:
    out = objective.elbo(module.lavae, x, keys)
    metrics = {**_elbo_metrics(out.terms), "inferred_count": out.count.astype(float)}
    if count is not None:
        metrics["count_accuracy"] = (out.count == count).astype(float)
    drawn, known = out.posterior, out.count if count is None else count
    return metrics | diagnostics.location_diagnostics(
        module.settings, out.detection, drawn.where.index, drawn.count, known
    )


def _reconstruct_scene(module: Trainee, x) -> Reconstruction:
    scene = inference.infer(module.lavae, x)
    means = generative.render(module.lavae, scene)
    return Reconstruction(means, scene, generative.sprites(module.lavae, scene))


def _elbo_metrics(terms: objective.Terms | vae.Terms) -> Metrics:
    log_likelihood, *kls = terms
    return {
        "neg_elbo": -terms.elbo,
        "neg_log_likelihood": -log_likelihood,
        **dict(zip(terms._fields[1:], kls, strict=True)),
    }


def _mean(metrics: Metrics) -> Metrics:
    return {name: value.mean(dtype=float) for name, value in metrics.items()}


def _elbo_loss(
    config: ConfigDict, lavae: LAVAE, x: jax.Array, keys: chex.PRNGKey, **kwargs
) -> tuple[jax.Array, Metrics, objective.Elbo]:
    """-ELBO, metrics, and what they were made of."""
    budget = Budget(config.budget.slots, math.ceil(config.budget.places * len(x)))
    out = objective.elbo(lavae, x, keys, budget, **kwargs)
    metrics = _mean({**_elbo_metrics(out.terms), "inferred_count": out.count})
    metrics["overflow"] = out.posterior.overflow / len(x)
    return metrics["neg_elbo"], metrics, out


def _learning_rate(config: ConfigDict, start: int = 0, later_steps: int = 0) -> optax.Schedule:
    """From step `start` on; it may not reach 0 before the training ends, but for steps of
    another phase that follow."""
    rate, steps = config.optimizer.learning_rate, config.optimizer.decay_steps
    end = start + steps + later_steps
    if steps and config.num_train_steps > end:
        raise ValueError(
            f"config.num_train_steps={config.num_train_steps}, but the learning rate is 0 from "
            f"step {end} on (config.optimizer.decay_steps={steps}); set both"
        )
    return schedules.starting_at(start, schedules.cosine(rate, steps))


CANDIDATES = 4  # objects for each component of a mixture, which starts at one of them
APPEARANCE = ("lavae.appearance", "lavae.decoder", "lavae.count")


def _joint(config: ConfigDict, cell: int) -> tuple[Phase, ...]:
    """The paper's (App. B): h_loc follows the auxiliary VAE's map beside the ELBO."""
    curriculum = config.curriculum
    temperature = schedules.temperature(curriculum.temperature)
    auxiliary_weight = schedules.auxiliary_weight(curriculum)
    force_one = schedules.force_one(curriculum)

    def elbo_loss(module: Trainee, x, keys, step):
        return _elbo_loss(
            config, module.lavae, x, keys, temperature=temperature(step), force_one=force_one(step)
        )

    def warmup_loss(module: Trainee, x, keys, step):
        auxiliary_keys, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        loss, metrics, out = elbo_loss(module, x, keys, step)
        auxiliary = vae.elbo(module.auxiliary, x, auxiliary_keys)
        canvas = x.shape[1:3]
        target = vae.kl_map(auxiliary.kl, cell, canvas)
        h_loc = out.detection.h_loc / module.settings.gamma_for(canvas)
        metrics["auxiliary_neg_elbo"] = -auxiliary.terms.elbo.mean()
        metrics["auxiliary_distance"] = warmup.distance(h_loc, target)
        loss += metrics["auxiliary_neg_elbo"]
        loss += auxiliary_weight(step) * metrics["auxiliary_distance"]
        return loss, metrics

    def later_loss(module: Trainee, x, keys, step):
        _, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        return elbo_loss(module, x, keys, step)[:2]

    rate = _learning_rate(config)
    rates = {"lavae.location": schedules.exponential(curriculum.location)}
    rates |= dict.fromkeys(APPEARANCE, rate)
    end = curriculum.warmup_steps + curriculum.anneal_steps
    return (
        Phase("warm-up", warmup_loss, {**rates, "auxiliary": rate}, end),
        Phase("elbo", later_loss, rates),
    )


def _phased(config: ConfigDict, cell: int) -> tuple[Phase, ...]:
    """Where objects are (see `warmup`), then the ELBO, then the mixture if there is one.

    There h_loc stays as it is, which makes steps cheap: with samples on peaks alone, the ELBO
    has nothing to tell it. If the curriculum has learning rates for the `location` network, it
    is trained on, through relaxed samples of a `temperature`.
    """
    for_auxiliary, for_peaks = config.curriculum.auxiliary, config.curriculum.peaks
    if not 1 <= for_peaks.shifts <= cell:
        raise ValueError(
            f"config.curriculum.peaks.shifts={for_peaks.shifts} must be from 1 to {cell}, the "
            "pixels of a latent of the auxiliary VAE"
        )

    def auxiliary_loss(module: Trainee, x, keys, step):
        loss = -vae.elbo(module.auxiliary, x, keys).terms.elbo.mean()
        return loss, {"auxiliary_neg_elbo": loss}

    def peaks_loss(module: Trainee, x, keys, step):
        settings = module.settings
        keys, turn_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        x = warmup.turned(x, turn_keys, for_peaks.turned)
        kl_map = warmup.mean_kl_map(module.auxiliary, x, keys, for_peaks.shifts)
        peaks = counting.peaks(kl_map, for_peaks.threshold, settings.peak_radius)
        peaks = warmup.centre(peaks, x, settings.sprite_size // 2 - 1, for_peaks.centrings)
        h_loc = inference.location_logits(module.lavae, x)
        logits = inference.object_logits(settings, h_loc)
        loss = warmup.detection_loss(logits, peaks, for_peaks.weight, for_peaks.which_weight)
        inferred = inference.detect(settings, h_loc).count
        counts = {"inferred_count": inferred, "target_count": peaks.sum((1, 2))}
        return loss, {"detection_loss": loss, **_mean(counts)}

    def mixture_loss(module: Trainee, x, keys, step, found=None):
        loss, metrics, _ = _elbo_loss(config, module.lavae, x, keys, found=found)
        return loss, {**metrics, "components": module.lavae.prior.perplexity}

    def appearance_loss(module: Trainee, x, keys, step, found=None):
        relaxed = {"temperature": temperature(step)} if train_location else {}
        return _elbo_loss(config, module.lavae, x, keys, found=found, **relaxed)[:2]

    start_peaks = for_auxiliary.steps
    start_appearance = start_peaks + for_peaks.steps
    auxiliary_rate = optax.constant_schedule(for_auxiliary.learning_rate)
    peaks_rate = schedules.cosine(for_peaks.learning_rate, for_peaks.steps)
    for_mixture = config.curriculum.get("mixture")
    mixture_steps = for_mixture.steps if for_mixture else 0
    appearance_rate = _learning_rate(config, start_appearance, mixture_steps)
    appearance_rates = dict.fromkeys(APPEARANCE, appearance_rate)
    train_location = "location" in config.curriculum
    if train_location:
        temperature = schedules.starting_at(
            start_appearance, schedules.temperature(config.curriculum.temperature)
        )
        appearance_rates["lavae.location"] = schedules.starting_at(
            start_appearance, schedules.exponential(config.curriculum.location)
        )
    few = config.model.support == "peaks"  # all pixels of all images would not fit into memory
    memo = _find if few and not train_location else None
    phases = (
        Phase("auxiliary", auxiliary_loss, {"auxiliary": auxiliary_rate}, start_peaks),
        Phase(
            "peaks",
            peaks_loss,
            {"lavae.location": schedules.starting_at(start_peaks, peaks_rate)},
            start_appearance,
        ),
        Phase("appearance", appearance_loss, appearance_rates, memo=memo),
    )
    if not for_mixture:
        return phases
    if not config.optimizer.decay_steps:
        raise ValueError("config.optimizer.decay_steps=0: it says when the mixture's phase begins")
    start_mixture = start_appearance + config.optimizer.decay_steps
    mixture_rate = schedules.cosine(for_mixture.learning_rate, mixture_steps)
    mixture_rate = schedules.starting_at(start_mixture, mixture_rate)
    *before, appearance = phases
    return (
        *before,
        appearance._replace(end=start_mixture),
        Phase(
            "mixture",
            mixture_loss,
            dict.fromkeys((*APPEARANCE, "lavae.prior"), mixture_rate),
            start=_start_mixture,
            memo=memo and _find_and_sketch,
            relate=memo and _relate,
        ),
    )


def _find(module: Trainee, x: jax.Array) -> dict[str, inference.Found]:
    return {"found": inference.find(module.lavae, x)}


def _find_and_sketch(module: Trainee, x: jax.Array) -> dict[str, Any]:
    """What is found, at which pixels [B, M], and a sketch of what is seen there [B, M, ...]."""
    settings = module.settings
    detection = inference.detect(settings, inference.location_logits(module.lavae, x))
    pixel = inference.peak_locations(settings, detection).index
    image = np.repeat(np.arange(len(x)), pixel.shape[1])
    windows = placement.windows_at(x, pixel.reshape(-1), image, settings.sprite_size)
    sketch = neighbours.sketch(windows).reshape(*pixel.shape, -1)
    return {"found": inference.found(settings, detection), "pixel": pixel, "sketch": sketch}


def _relate(params: Variables, memo: dict[str, Any]) -> dict[str, inference.Found]:
    """Each object with the components that it is near to."""
    found, sketch = memo["found"], memo["sketch"]
    is_object = _is_object(found.count, sketch.shape[1])
    started_at = params["started_at"]
    number = min(neighbours.NEAR, len(started_at))
    near = np.zeros((*is_object.shape, number), np.int32)
    near[is_object] = neighbours.nearest(sketch[is_object], started_at, number)
    return {"found": found._replace(support=found.support._replace(near=near))}


def _is_object(count: np.ndarray, slots: int) -> np.ndarray:
    """Which of the slots of each image hold an object, [B, slots]."""
    return np.arange(slots) < np.asarray(count)[:, None]


def _start_mixture(module: Trainee, variables: Variables, batches: Iterable[np.ndarray]) -> dict:
    """Components at objects that are found in training images, different ones if there are."""

    def encode(module, x, count, pixel):
        objects = packing.pack(count, pixel.size)
        return inference.appearance(module.lavae, x, Locations.hard(pixel), objects).mean

    find, encode = (jax.jit(model.bind(f, module)) for f in (_find_and_sketch, encode))
    size = module.settings.prior.components
    encodings = [np.zeros((0, module.settings.latent_size), np.float32)]
    sketches = [np.zeros((0, neighbours.NUMBERS), np.float32)]
    for x in batches:
        seen = find(variables, x)
        count, pixel = seen["found"].count, seen["pixel"]
        encodings.append(np.asarray(encode(variables, x, count, pixel))[: count.sum()])
        sketches.append(np.asarray(seen["sketch"])[_is_object(count, pixel.shape[1])])
        if sum(map(len, sketches)) >= CANDIDATES * size:
            break
    encodings, sketches = (np.concatenate(a)[: CANDIDATES * size] for a in (encodings, sketches))
    if len(encodings) < size:
        raise ValueError(
            f"config.model.prior.components={size}, but only {len(encodings)} objects are found "
            "in all training scenes, and each component starts at one"
        )
    chosen = neighbours.different(sketches, size)
    return {"lavae.prior": prior.at_encodings(encodings[chosen]), "started_at": sketches[chosen]}


# --- the baseline ------------------------------------------------------------


def _baseline(config: ConfigDict) -> Task:
    settings = vae.baseline_settings(config.model)
    beta = schedules.beta(config.beta)

    def make_module(train, axis_name):
        return GridVAE(settings, bool(train), axis_name)

    def loss(module: GridVAE, x, keys, step):
        terms = vae.elbo(module, x, keys).terms
        return -terms.weighted_elbo(beta(step)).mean(), _mean(_elbo_metrics(terms))

    def evaluate(module: GridVAE, x, count, keys):
        del count
        return _elbo_metrics(vae.elbo(module, x, keys).terms)

    def reconstruct(module: GridVAE, x):
        return Reconstruction(vae.reconstruct(module, x))

    def crops_loss(module: GridVAE, x, keys, step):
        crop_keys, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        return loss(module, vae.crop(x, crop_keys, config.crops.side), keys, step)

    if config.crops.steps >= config.num_train_steps:
        raise ValueError(
            f"config.crops.steps={config.crops.steps} leave none of "
            f"config.num_train_steps={config.num_train_steps} for whole images; set both"
        )
    rates = dict.fromkeys(("encoder", "decoder"), _learning_rate(config))
    phases = [Phase("elbo", loss, rates)]
    if config.crops.steps:
        phases.insert(0, Phase("crops", crops_loss, rates, config.crops.steps))
    return Task(make_module, tuple(phases), evaluate, reconstruct)
