"""How users call the package. mypy checks this file, and no test runs it.

In a line with `# type: ignore`, mypy must find an error: a superfluous ignore is an error, too.
"""

from typing import Any, assert_type

import jax
import numpy as np

import lavae_jax
from lavae_jax.decomposition import Detections
from lavae_jax.objective import Bound


def load_and_infer(images: np.ndarray) -> None:
    scene = lavae_jax.load("mnist1k").infer(images)
    assert_type(scene, lavae_jax.Scene | Any)
    scene.move(0, (20, 30))
    scene.mov(0, (20, 30))  # type: ignore[union-attr]
    lavae_jax.laod("mnist1k")  # type: ignore[attr-defined]


def use_a_model(model: lavae_jax.Model, images: np.ndarray) -> None:
    assert_type(model.detect(images), list[Detections])
    assert_type(model.bound(images, indices=np.arange(len(images))).log_p, jax.Array)
    assert_type(model.bound(images), Bound)
    scene = model.sample(key=0, num_scenes=8, count=[3])
    assert_type(scene, lavae_jax.Scene)
    assert_type(model.render(scene), jax.Array)
    assert_type(model.with_preprocessing(invert=True), lavae_jax.Model)
    model.infer(images, max_object=3)  # type: ignore[call-arg]
    model.infer(images, key="seed")  # type: ignore[arg-type]
    model.render(images)  # type: ignore[arg-type]
    lavae_jax.analyse(model, images, masks=True)
    lavae_jax.analyse(images, model)  # type: ignore[arg-type]


def edit(scene: lavae_jax.Scene) -> None:
    edited = scene.swap(0, 1).move(0, (20, 30)).move([0, 1], np.zeros((2, 2), int)).remove(2)
    assert_type(edited, lavae_jax.Scene)
    assert_type(edited[0].count, jax.Array)
    scene.swap(0)  # type: ignore[call-arg]
    scene.move("first", (20, 30))  # type: ignore[arg-type]
    scene.move(0, 20)  # type: ignore[arg-type]
