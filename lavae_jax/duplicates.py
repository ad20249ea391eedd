"""Drops duplicate detections: second detections of one object, as judged by the likelihood.

The location network may find two peaks for one object. The distance of the peaks does not tell
whether they are two objects that overlap, but the generative model does: the sprite of a duplicate
explains nothing that the sprite of the first detection does not.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from lavae_jax import bernoulli, decomposition, likelihoods, placement
from lavae_jax.decomposition import Detections, Images, Run
from lavae_jax.model import LAVAE
from lavae_jax.settings import LavaeSettings


def drop(
    run: Run,
    settings: LavaeSettings,
    images: Images,
    detected: Sequence[Detections],
    described: Sequence[decomposition.Appearances],
) -> tuple[list[Detections], list[decomposition.Appearances]]:
    """Drops detections whose removal increases the ELBO of their image.

    Only detections with another one at most `settings.resolve_radius` rows and columns away are
    considered, the least useful first. A detection is useful if its sprite adds more to
    log p(x | z) than its location and its appearance cost: log D nats, and
    KL(q(z_app | z_loc, x) || N(0, I)). p(n) is ignored, since images may show more objects than
    its support has.

    Args:
        run: computes functions of the model; see `decomposition.Run`.
        settings: the model's settings.
        images: as the model sees them, [H, W, C] each.
        detected: the detections of each image.
        described: their appearances.

    Returns:
        The remaining detections and their appearances.
    """
    detected, described = list(detected), list(described)
    radius = settings.resolve_radius
    doubtful = [i for i, one in enumerate(detected) if len(_close(one.location, radius))]
    means = [described[i].mean for i in doubtful]
    latents = np.zeros((0, settings.latent_size), np.float32)
    drawn = decomposition.decode(run, np.concatenate([latents, *means]))
    for i, sprites in zip(doubtful, decomposition.split(drawn, list(map(len, means))), strict=True):
        one = detected[i]
        cost = described[i].kl + math.log(math.prod(one.canvas))
        useful = _useful(run, settings, _drawn(images[i], one.location, sprites), cost)
        detected[i] = one._replace(
            location=one.location[useful], log_odds=one.log_odds[useful], num_detected=len(useful)
        )
        described[i] = jax.tree.map(lambda a, k=useful: a[k], described[i])
    return detected, described


class _Drawn(NamedTuple):
    """An image with a margin of two sprites' sides, and the sprites of its detections."""

    image: np.ndarray  # [4 h + H, 4 h + W, C]
    is_image: np.ndarray  # [4 h + H, 4 h + W, 1]: 1, and 0 in the margin
    location: np.ndarray  # [n, 2], in the image without its margin
    sprites: np.ndarray  # [n, h, h, C]


def _drawn(image: np.ndarray, location: np.ndarray, sprites: np.ndarray) -> _Drawn:
    margin = (2 * sprites.shape[1], 2 * sprites.shape[1])
    pixels = (image, np.ones((*image.shape[:2], 1)))
    wide, is_image = (np.pad(a.astype(np.float32), (margin, margin, (0, 0))) for a in pixels)
    return _Drawn(wide, is_image, location, sprites)


def _close(location: np.ndarray, radius: int) -> np.ndarray:
    """The indices of locations [n, 2] that have another one at most `radius` pixels away."""
    distance = np.abs(location[:, None] - location[None]).max(-1, initial=0)
    return np.flatnonzero((distance <= radius).sum(1) > 1) if radius else np.zeros(0, int)


def _useful(run: Run, settings: LavaeSettings, scene: _Drawn, cost: np.ndarray) -> np.ndarray:
    """The indices of the detections that are kept, in order."""
    kept = np.arange(len(scene.location))
    while len(close := kept[_close(scene.location[kept], settings.resolve_radius)]):
        pixels = [_with_and_without(settings, scene, kept, k) for k in close]
        stacked = (np.stack(part) for part in zip(*pixels, strict=True))
        gain = run(
            _log_ratio,
            *stacked,
            batch_size=decomposition.OBJECTS_AT_ONCE,
            least=decomposition.FEW_OBJECTS,
        )
        gain = gain - cost[close]
        # Dropping one changes the gains of those around it; these are decided in the next round.
        dropped: list[int] = []
        for k in close[np.argsort(gain)][: np.count_nonzero(gain < 0)]:
            away = np.abs(scene.location[dropped] - scene.location[k]).max(-1, initial=0)
            if (away >= settings.sprite_size).all():
                dropped.append(k)
        if not dropped:
            break
        kept = np.setdiff1d(kept, dropped)
    return kept


def _with_and_without(
    settings: LavaeSettings, scene: _Drawn, kept: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pixels under sprite k, and λ there with and without it, [h, h, C] each.

    All are 0 outside of the image.
    """
    side = settings.sprite_size
    near = np.abs(scene.location[kept] - scene.location[k]).max(-1) < side
    around = kept[near]
    # A window of three by three sprites, with sprite k in its middle.
    corner = scene.location[k] - side // 2 + side
    window = tuple(slice(first, first + 3 * side) for first in corner)
    location = scene.location[around] - scene.location[k] + side // 2 + side
    if settings.composition == "over" and settings.channels > 1:
        order = decomposition.depth_order(scene.sprites[around], location, scene.image[window])
        around, location = around[order], location[order]
    with_it, without = (
        placement.compose(
            scene.sprites[around[of]], location[of], (3 * side, 3 * side), settings.composition
        )
        for of in (around >= 0, around != k)
    )
    middle = np.s_[side : 2 * side, side : 2 * side]
    is_image = scene.is_image[window][middle]
    pixels = (scene.image[window], with_it, without)
    return tuple(a[middle] * is_image for a in pixels)


def _log_ratio(lavae: LAVAE, x: jax.Array, with_it: jax.Array, without: jax.Array) -> jax.Array:
    """log p(x | with_it) - log p(x | without), [P], for λ of windows [P, h, h, C]."""
    likelihood = likelihoods.of(lavae.settings)
    return bernoulli.sum_pixels(likelihood.log_prob(x, with_it) - likelihood.log_prob(x, without))
