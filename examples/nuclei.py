"""Finds nuclei in micrographs without labels, in comparison with classical segmentation.

    python examples/nuclei.py --data=FOLDER --make=nuclei/
    lavae show --path=nuclei/train
    lavae train --config=images:grey --config.dataset.path=nuclei/train --workdir=runs/nuclei
    lavae infer --checkpoint=runs/nuclei --images=nuclei/test --output=nuclei.jsonl \\
        --masks=masks/
    python examples/nuclei.py --data=FOLDER --score=nuclei.jsonl

FOLDER contains `images/`, and `labels/` with a label image of the same name for each: 0 for the
background and a different number for each nucleus. Every fifth image, in the order of names and
beginning with the first, is a test image. Labels are used for scores only. One data set that can be
converted to this form is BBBC038, of the Broad Bioimage Benchmark Collection.
"""

import json
import pathlib
import shutil

import numpy as np
import tqdm
from absl import app, flags
from PIL import Image

from lavae_jax import classical, evaluation, objects
from lavae_jax.images import read_image

DATA = flags.DEFINE_string("data", None, "The folder with images/ and labels/.")
MAKE = flags.DEFINE_string("make", "", "A folder to write train/ and test/ to.")
SCORE = flags.DEFINE_string("score", "", "The .jsonl file that `lavae infer` wrote.")
PART = flags.DEFINE_enum("part", "test", ["train", "test"], "The images to score.")
flags.mark_flag_as_required("data")

NEAR = 5.0  # pixels: the largest distance at which a detection matches a true centre
OVERLAPS = np.arange(0.5, 0.91, 0.1)  # thresholds on the intersection over union of two masks
COLUMNS = ("precision", "recall", "F1", "count error", "exact", "AP 0.5", "AP 0.5-0.9")


def part(name: str) -> list[pathlib.Path]:
    """Lists the images of a part.

    Args:
        name: "train" or "test".

    Returns:
        Their paths, sorted.
    """
    files = sorted((pathlib.Path(DATA.value) / "images").iterdir())
    return [file for i, file in enumerate(files) if (i % 5 == 0) == (name == "test")]


def make(folder: pathlib.Path) -> None:
    """Copies the images to the folders of both parts.

    Args:
        folder: the folder to write to.
    """
    for name in ("train", "test"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in part(name):
            shutil.copy(file, folder / name)
        print(f"{folder / name}: {len(part(name))} images")


# --- found objects -------------------------------------------------------------

# The objects of an image: centres [n, 2] and, if there are masks, a label image.
Found = tuple[np.ndarray, np.ndarray | None]


def of_model(path: str) -> dict[str, Found]:
    """Reads the objects that a model found.

    Args:
        path: the .jsonl file that `lavae infer` wrote.

    Returns:
        Centres and label image, by the name of the image.
    """
    records = map(json.loads, pathlib.Path(path).read_text().splitlines())
    return {record["image"]: _of_record(record) for record in records}


def _of_record(record: dict) -> Found:
    things = record["objects"]
    centres = np.array([[thing["row"], thing["column"]] for thing in things]).reshape(-1, 2)
    has_masks = all("mask" in thing for thing in things)
    return centres, objects.label_image(record) if has_masks else None


def of_method(method: classical.Method, file: pathlib.Path) -> Found:
    """Finds objects by a classical method, with Otsu's threshold for each image.

    Args:
        method: a classical method.
        file: an image.

    Returns:
        Centres and label image.
    """
    image = np.asarray(read_image(file), np.float32)
    labels = method((image > classical.threshold(image))[..., None])
    return evaluation.true_centres(labels), labels


# --- scores --------------------------------------------------------------------


def row(found: dict[str, Found], truth: dict[str, np.ndarray]) -> list[float]:
    """Computes the scores of a method.

    Args:
        found: centres and label image, by the name of the image.
        truth: true label images, by the name of the image.

    Returns:
        The scores in the order of `COLUMNS`; those of masks are nan if there are no masks.
    """
    hits = claimed = total = 0
    errors, precisions = [], []
    for name, true in truth.items():
        centres, labels = found[name]
        expected = evaluation.true_centres(true)
        hits += len(evaluation.match_within(centres, expected, NEAR)[0])
        claimed, total = claimed + len(centres), total + len(expected)
        errors.append(abs(len(centres) - len(expected)))
        if labels is not None:
            each = [evaluation.mask_precision(labels, true, overlap) for overlap in OVERLAPS]
            precisions.append(each)
    precision, recall = hits / max(claimed, 1), hits / max(total, 1)
    harmonic = 2 * hits / max(claimed + total, 1)
    average = np.mean(precisions, axis=0) if precisions else np.full(len(OVERLAPS), np.nan)
    errors = np.array(errors)
    counts = errors.mean(), (errors == 0).mean()
    return [precision, recall, harmonic, *counts, average[0], average.mean()]


def _numbered(labels: np.ndarray) -> np.ndarray:
    """Renumbers the objects of a label image from 1 to n."""
    in_order = np.unique(np.append(labels, 0), return_inverse=True)[1]
    return in_order[:-1].reshape(labels.shape)


def score(path: str) -> None:
    """Prints the scores of a model and of classical methods.

    Args:
        path: the .jsonl file that `lavae infer` wrote.
    """
    files = part(PART.value)
    labels = pathlib.Path(DATA.value) / "labels"
    truth = {file.name: _numbered(np.asarray(Image.open(labels / file.name))) for file in files}
    rows = {"LAVAE": row(of_model(path), truth)}
    for name, method in classical.METHODS.items():
        progress = tqdm.tqdm(files, desc=name, delay=3.0)
        rows[f"Otsu, {name}"] = row({f.name: of_method(method, f) for f in progress}, truth)
    print(f"{len(files)} images; a hit is within {NEAR:g} pixels")
    print(f"{'':28}" + "".join(f"{column:>12}" for column in COLUMNS))
    for name, values in rows.items():
        print(f"{name:28}" + "".join(f"{value:12.3f}" for value in values))


def main(_):
    """Makes or scores images, depending on the flags.

    Args:
        _: ignored; absl passes the arguments that are not flags.
    """
    if not MAKE.value and not SCORE.value:
        raise app.UsageError("give --make or --score")
    if MAKE.value:
        make(pathlib.Path(MAKE.value))
    if SCORE.value:
        score(SCORE.value)


if __name__ == "__main__":
    app.run(main)
