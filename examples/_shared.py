"""What the examples have in common. It is imported first: it finds the project's packages."""

import json
import pathlib
import sys
from collections.abc import Callable

import numpy as np
from absl import app, logging
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import lavae_jax
from datasets import images
from lavae_jax import figures, gallery


def run(main: Callable[[], None]) -> None:
    def quiet(_):
        logging.set_verbosity(logging.WARNING)
        main()

    app.run(quiet)


def score(
    found: str, truth: str, near: float, is_wanted: Callable[[dict], bool] = lambda thing: True
) -> str:
    """What launch/infer.py wrote as .jsonl, against the true centres in each image."""
    centres = json.loads(pathlib.Path(truth).read_text())
    matched = there = claimed = right = 0
    for line in pathlib.Path(found).read_text().splitlines():
        record = json.loads(line)
        true = np.array(centres[record["image"]]).reshape(-1, 2)
        wanted = filter(is_wanted, record["objects"])
        seen = np.array([[thing["row"], thing["column"]] for thing in wanted]).reshape(-1, 2)
        distance = cdist(true, seen)
        matched += int((distance[linear_sum_assignment(distance)] <= near).sum())
        there, claimed = there + len(true), claimed + len(seen)
        right += len(true) == len(seen)
    return (
        f"{len(centres)} images with {there:,} objects: the count is right in "
        f"{right / len(centres):.2%} of the images; recall {matched / max(there, 1):.2%}, "
        f"precision {matched / max(claimed, 1):.2%} within {near:g} pixels"
    )


def draw_kinds(checkpoint: str, folder: str, picture: str, number: int, most_images: int) -> None:
    """The sprites that a model finds in a folder's images, one for each kind."""
    model = lavae_jax.load(checkpoint)
    dataset = model.config.dataset
    look = images.Look(model.settings.channels, dataset.invert, float(dataset.threshold))
    opened = images.open_images(folder)
    shown = [look.grey(opened[i], opened.names[i]) for i in range(len(opened))[:most_images]]
    scene = model.infer(np.stack(shown) > look.threshold, max_objects=512)
    figures.save(gallery.kinds(model, scene, number, columns=16), picture)
    print(f"written to {picture}")
