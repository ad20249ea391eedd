"""Scores that one can trust: log-odds of peaks, calibrated on scenes whose objects are known.

The location network is trained with weights that make it learn faster and its probabilities too
high or too low. On composed scenes (see `sleep`) it is known which peaks of h_loc are objects. The
two numbers a > 0 and b with which a l + b, for log-odds l, predicts that best (Platt, 1999) become
part of the network's last layer.
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
SEED = 32  # of the scenes; any number
LOWEST = -10.0  # log-odds below which a peak is not looked at

Compose = Callable[[jax.Array, chex.PRNGKey], ComposedScenes]  # of objects, a scene for each key


def fit(
    module: Trainee,
    variables: Variables,
    objects: np.ndarray,
    compose: Compose,
) -> tuple[float, float]:
    """The scale and shift of the location network's logits that make its log-odds calibrated.

    Args:
        objects: [K, h, h, C], which scenes are composed of.
    """
    settings = module.settings

    def observe(module, objects, keys):
        scenes = compose(objects, keys)
        h_loc = inference.location_logits(module.lavae, scenes.image)
        log_odds = inference.object_logits(settings, h_loc)
        peaks = counting.peaks(log_odds, LOWEST, settings.peak_radius)
        return log_odds, peaks, scenes.pixel, scenes.count

    observe = jax.jit(model.bind(observe, module))
    log_odds, is_object = [], []
    for keys in jax.random.split(jax.random.key(SEED), (SCENES // BATCH, BATCH)):
        for scene in zip(*map(np.asarray, observe(variables, objects, keys)), strict=True):
            judged = judge(*scene, settings.peak_radius)
            log_odds.append(judged[0])
            is_object.append(judged[1])
    scale, shift = fit_logistic(np.concatenate(log_odds), np.concatenate(is_object))
    # log-odds = logit - offset, so that scaling them shifts the logits by (1 - scale) offset.
    offset = settings.threshold - settings.log_odds_at_threshold
    return scale, shift + (1 - scale) * offset


def judge(
    log_odds: np.ndarray, peaks: np.ndarray, pixel: np.ndarray, count: int, radius: int
) -> tuple[np.ndarray, np.ndarray]:
    """The log-odds of a scene's peaks [H, W], and which of them are objects.

    The highest peak takes the nearest object at most `radius` rows and columns away, then the next
    one of those that are left.

    Args:
        pixel: [S], where objects are, of which the first `count` hold.
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
    """The a in [0.05, 20] and b that maximise the likelihood of is_true ~ sigmoid(a l + b)."""
    if is_true.all() or not is_true.any():
        return 1.0, 0.0  # nothing to tell apart
    sign = np.where(is_true, 1.0, -1.0)

    def loss(parameters):
        wrong = -sign * (parameters[0] * log_odds + parameters[1])
        slope = -sign * scipy.special.expit(wrong) / len(sign)
        return np.logaddexp(0, wrong).mean(), np.array([slope @ log_odds, slope.sum()])

    found = scipy.optimize.minimize(
        loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0.05, 20), (None, None)]
    )
    return float(found.x[0]), float(found.x[1])
