"""Calibration of the location network's log-odds on scenes whose objects are known.

The location network is trained with a weighted loss, which speeds up learning but biases its
probabilities. Composed scenes (see `sleep`) tell which peaks of h_loc are objects. From these
labels, Platt scaling (Platt, 1999) finds a > 0 and b such that a l + b predicts them best from the
log-odds l. Both numbers become part of the network's last layer.
"""

from collections.abc import Callable

import chex
import jax
import numpy as np
import scipy.optimize
import scipy.special

from lavae_jax import counting, inference, model
from lavae_jax.model import Variables
from lavae_jax.training.sleep import ComposedScenes
from lavae_jax.training.trainee import Trainee

SCENES, BATCH = 2_048, 64
SEED = 32  # of the scenes; an arbitrary choice
LOWEST = -10.0  # peaks with lower log-odds are ignored
NEAR = 2  # pixels: a peak may always be that far from its object

Compose = Callable[[jax.Array, chex.PRNGKey], ComposedScenes]  # (objects, keys) -> scenes


def fit(
    module: Trainee,
    variables: Variables,
    objects: np.ndarray,
    compose: Compose,
) -> tuple[float, float]:
    """Fits the scale and shift of the location logits that calibrate the log-odds of peaks.

    Args:
        module: LAVAE and its settings.
        variables: its parameters and batch statistics.
        objects: isolated objects that scenes are composed of, [K, h, h, C].
        compose: composes a scene of the objects for each key.

    Returns:
        The scale and the shift of the logits.
    """
    settings = module.settings

    def observe(module, objects, keys):
        scenes = compose(objects, keys)
        h_loc = inference.location_logits(module.lavae, scenes.image)
        log_odds = inference.object_logits(settings, h_loc)
        peaks = counting.peaks(log_odds, LOWEST, settings.peak_radius)
        return log_odds, peaks, scenes.pixel, scenes.count

    compiled = jax.jit(model.bind(observe, module))
    log_odds, is_object = [], []
    for keys in jax.random.split(jax.random.key(SEED), (SCENES // BATCH, BATCH)):
        observed = map(np.asarray, compiled(variables, objects, keys))
        for odds, peaks, pixel, count in zip(*observed, strict=True):
            judged = judge(odds, peaks, pixel, count, max(settings.peak_radius, NEAR))
            log_odds.append(judged[0])
            is_object.append(judged[1])
    scale, shift = fit_logistic(np.concatenate(log_odds), np.concatenate(is_object))
    # Since log-odds = logit - offset, scaling them shifts the logits by (1 - scale) offset.
    offset = settings.threshold - settings.log_odds_at_threshold
    return scale, shift + (1 - scale) * offset


def judge(
    log_odds: np.ndarray, peaks: np.ndarray, pixel: np.ndarray, count: int, radius: int
) -> tuple[np.ndarray, np.ndarray]:
    """Decides which peaks of a scene are objects.

    In the order of decreasing log-odds, each peak is matched to the nearest unmatched object that
    is at most `radius` rows and columns away.

    Args:
        log_odds: the log-odds of an object at each pixel, [H, W].
        peaks: which pixels are peaks, bool [H, W].
        pixel: indices of the objects' pixels, [S], of which the first `count` are valid.
        count: the number of objects.
        radius: the greatest distance of a match, in rows and in columns.

    Returns:
        The log-odds of the peaks in decreasing order, and whether each peak is an object, [n] each.
    """
    rows, columns = np.nonzero(peaks)
    order = np.argsort(-log_odds[rows, columns], kind="stable")
    rows, columns = rows[order], columns[order]
    left = np.stack(np.divmod(pixel[:count], log_odds.shape[1]), axis=1)
    is_object = np.zeros(len(rows), bool)
    for i, peak in enumerate(zip(rows, columns, strict=True)):
        distance = np.abs(left - peak).max(1)
        if len(left) and distance.min() <= radius:
            is_object[i] = True
            left = np.delete(left, distance.argmin(), axis=0)
    return log_odds[rows, columns], is_object


def fit_logistic(log_odds: np.ndarray, is_true: np.ndarray) -> tuple[float, float]:
    """Fits is_true ~ Bernoulli(sigmoid(a l + b)) by maximum likelihood.

    Args:
        log_odds: l, [n].
        is_true: the labels, bool [n].

    Returns:
        a, from 0.05 to 20, and b; 1 and 0 if all labels are the same.
    """
    if is_true.all() or not is_true.any():
        return 1.0, 0.0  # one class alone does not determine a and b
    sign = np.where(is_true, 1.0, -1.0)

    def loss(parameters):
        wrong = -sign * (parameters[0] * log_odds + parameters[1])
        slope = -sign * scipy.special.expit(wrong) / len(sign)
        return np.logaddexp(0, wrong).mean(), np.array([slope @ log_odds, slope.sum()])

    found = scipy.optimize.minimize(
        loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0.05, 20), (None, None)]
    )
    return float(found.x[0]), float(found.x[1])
