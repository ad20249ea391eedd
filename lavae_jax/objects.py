"""What is found in images, as numbers for people and other programs."""

import csv
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lavae_jax import masks, normalisation, placement
from lavae_jax.likelihoods import Likelihood

Record = dict[str, Any]  # of an image: see `record`


class Measured(NamedTuple):
    """An object on its image, in pixels."""

    row: float  # the centre of mass of its sprite
    column: float
    top: int  # its box: the pixels that are more likely foreground than not
    left: int
    height: int
    width: int
    score: float  # the probability that it is one
    brightness: float | None  # the mean of the image over those pixels


def measure(
    location: np.ndarray,
    sprites: np.ndarray,
    score: np.ndarray,
    canvas: tuple[int, int],
    picture: np.ndarray | None,
    likelihood: Likelihood,
    size: tuple[int, int] | None = None,
) -> list[Measured]:
    """Measures the objects of one image.

    What the model sees may be a zoomed image. Here, and nowhere else, locations on it become those
    on the user's.

    Args:
        location: [n, 2].
        sprites: [n, h, w, C].
        score: [n].
        canvas: height and width of the image that the model sees.
        picture: [H, W] or [H, W, C], for the brightness of the objects; of either size.
        likelihood: decides which pixels of a sprite are foreground.
        size: height and width of the user's image; by default, it is the canvas.
    """
    if picture is not None:
        picture = np.asarray(picture, np.float32)
        picture = picture.max(-1) if picture.ndim == 3 else picture
        picture = normalisation.resize(picture[..., None], canvas)[..., 0]
    found = [
        _measure_one(*one, canvas, picture, likelihood)
        for one in zip(location, sprites, score, strict=True)
    ]
    return [_in_image(one, canvas, size) for one in found] if size else found


def _in_image(one: Measured, canvas: tuple[int, int], size: tuple[int, int]) -> Measured:
    """An object on the canvas as one on an image that is `size` pixels high and wide."""
    (row, top, height), (column, left, width) = (
        _stretched(*span, new / old)
        for span, old, new in zip(
            ((one.row, one.top, one.height), (one.column, one.left, one.width)),
            canvas,
            size,
            strict=True,
        )
    )
    return Measured(row, column, top, left, height, width, one.score, one.brightness)


def _stretched(centre: float, start: int, length: int, scale: float) -> tuple[float, int, int]:
    """A centre and a span of pixels, in the pixels of an axis that has `scale` times as many.

    Pixel i reaches from i - 0.5 to i + 0.5, so that the image's edges stay its edges.
    """
    first = math.floor(start * scale + 0.5)
    after = max(math.floor((start + length) * scale + 0.5), first + 1)
    return (centre + 0.5) * scale - 0.5, first, after - first


def _measure_one(location, sprite, score, canvas, picture, likelihood) -> Measured:
    on_canvas, on_sprite = placement.overlap(location, sprite.shape[:2], canvas)
    seen = sprite.max(-1)[on_sprite]
    # A faint sprite has a box, too: that of its brightest pixels.
    is_own = np.asarray(likelihood.is_foreground(seen)) | (seen >= 0.999 * seen.max())
    rows, columns = np.flatnonzero(is_own.any(1)), np.flatnonzero(is_own.any(0))
    top, left = (part.start for part in on_canvas)
    row, column = centre_of_mass(seen)
    brightness = None if picture is None else float(picture[on_canvas][is_own].mean())
    return Measured(
        top + row,
        left + column,
        int(top + rows[0]),
        int(left + columns[0]),
        int(rows[-1] - rows[0] + 1),
        int(columns[-1] - columns[0] + 1),
        float(score),
        brightness,
    )


def centre_of_mass(weights: np.ndarray) -> tuple[float, float]:
    """Row and column of the centre of mass of weights [H, W]; (0, 0) if they are all 0."""
    total = max(float(weights.sum()), 1e-9)
    row = float(weights.sum(1) @ np.arange(weights.shape[0]) / total)
    return row, float(weights.sum(0) @ np.arange(weights.shape[1]) / total)


# --- records -----------------------------------------------------------------


def record(
    name: str,
    size: tuple[int, int],
    found: list[Measured],
    unexplained: float | None,
    log_p: float | None,
) -> Record:
    """The record of an image.

    size: height and width of the user's image.
    unexplained: the share of its foreground that no sprite covers; None if it has none.
    log_p: the bound on log p(x) in nats, where the image is binary.
    """
    return {
        "image": name,
        "height": size[0],
        "width": size[1],
        "count": len(found),
        "unexplained": None if unexplained is None else float(unexplained),
        "log_p": log_p,
        "error": None,
        "objects": [thing._asdict() for thing in found],
    }


def failure(name: str, error: str) -> Record:
    """An image that could not be read."""
    nothing = dict.fromkeys(("height", "width", "count", "unexplained", "log_p"))
    return {"image": name, **nothing, "error": error, "objects": []}


def label_image(record: Record) -> np.ndarray:
    """The masks of an image whose objects have some.

    Args:
        record: of the image; see `analysis.analyse`, whose option `masks` makes them.

    Returns:
        [H, W], int32: 0 for the background, and k + 1 for object k.
    """
    found = [thing["mask"] for thing in record["objects"]]
    return masks.decode(found, (record["height"], record["width"]))


# --- files -------------------------------------------------------------------

OPTIONAL = ("area", "group")  # what objects may have besides what is always measured


def _write_csv(records: Sequence[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """A file of objects, and one of images."""
    things = [thing for one in records for thing in one["objects"]]
    columns = [*Measured._fields, *(c for c in OPTIONAL if any(c in thing for thing in things))]
    summary = path.with_name(f"{path.stem}_images{path.suffix}")
    with path.open("w", newline="") as objects, summary.open("w", newline="") as images:
        rows = csv.writer(objects)
        rows.writerow(["image", "object", *columns])
        summaries = csv.writer(images)
        summaries.writerow(["image", "height", "width", "count", "unexplained", "log_p", "error"])
        for one in records:
            for number, thing in enumerate(one["objects"]):
                rows.writerow([one["image"], number, *(_rounded(thing[c]) for c in columns)])
            summaries.writerow([_rounded(v) for k, v in one.items() if k != "objects"])
    return [path, summary]


def _rounded(value):
    return round(value, 4) if isinstance(value, float) else value


def _write_lines(records: Sequence[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """A line of JSON for each image, with its objects."""
    with path.open("w") as file:
        file.writelines(map(_line, records))
    return [path]


def _write_coco(records: Sequence[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """COCO's JSON: boxes are [left, top, width, height], masks run lengths, groups categories."""
    images, annotations = [], []
    for image_id, one in enumerate(records, 1):
        about = {k: v for k, v in one.items() if k not in ("image", "objects")}
        images.append({"id": image_id, "file_name": one["image"], **about})
        for thing in one["objects"]:
            box = [thing[k] for k in ("left", "top", "width", "height")]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": thing.get("group", 1),
                    "segmentation": thing["mask"],
                    "bbox": masks.box(thing["mask"]) or box,
                    "area": thing["area"],
                    "iscrowd": 0,
                    "score": thing["score"],
                }
            )
    groups = {thing["group"] for one in records for thing in one["objects"] if "group" in thing}
    names = {group: f"group {group}" for group in sorted(groups)} or {1: "object"}
    categories = [{"id": group, "name": name} for group, name in names.items()]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content) + "\n")
    return [path]


WRITERS: dict[str, Callable[[Sequence[Record], pathlib.Path], list[pathlib.Path]]] = {
    ".csv": _write_csv,
    ".jsonl": _write_lines,
    ".json": _write_coco,
}


class PartialRecords:
    """Records that are collected for a file, which is written when all of them are complete.

    Until then they are stored in a file next to it, so that a run with the same flags, `about`,
    resumes after an interruption. Those of a run with other flags are discarded.
    """

    def __init__(self, output: pathlib.Path, about: dict[str, Any]):
        self.output = output
        self._path = output.with_name(f"{output.name}.unfinished")
        self.records: list[Record] = []
        first, *rest = self._whole_lines() or [""]
        if first == _line(about):
            self.records = [json.loads(line) for line in rest]
        self._path.write_text("".join([_line(about), *map(_line, self.records)]))

    def _whole_lines(self) -> list[str]:
        lines = self._path.read_text().splitlines(True) if self._path.exists() else []
        return [line for line in lines if line.endswith("\n")]

    def add(self, records: list[Record]) -> None:
        with self._path.open("a") as file:
            file.writelines(map(_line, records))
        self.records += records

    def finish(self) -> list[pathlib.Path]:
        """The files that are written."""
        written = WRITERS[self.output.suffix](self.records, self.output)
        self._path.unlink()
        return written


def _line(content: Any) -> str:
    return json.dumps(content) + "\n"
