"""Measurements of the objects in images, as records and files."""

import csv
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lavae_jax import masks, normalisation, placement
from lavae_jax.likelihoods import Likelihood

Record = dict[str, Any]  # an image and its objects; see `record`


class Measured(NamedTuple):
    """The measurements of an object on its image, in pixels.

    Attributes:
        row: row of the centre of mass of its sprite.
        column: column of the centre of mass of its sprite.
        top: first row of its box, which contains the foreground pixels of its sprite.
        left: first column of its box.
        height: height of its box.
        width: width of its box.
        score: probability that it is an object.
        brightness: mean of the image over the foreground pixels of its sprite; None without an
            image.
    """

    row: float
    column: float
    top: int
    left: int
    height: int
    width: int
    score: float
    brightness: float | None


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

    The model may see a zoomed image. Only this function converts locations on it to locations on
    the user's image.

    Args:
        location: [n, 2], row and column of each object.
        sprites: [n, h, w, C], pixel means.
        score: [n], probabilities of the objects.
        canvas: height and width of the image that the model sees.
        picture: [H, W] or [H, W, C], for the brightness of the objects; as large as the canvas or
            as the user's image. If None, no brightness is measured.
        likelihood: decides which pixels of a sprite are foreground.
        size: height and width of the user's image; by default, that of the canvas.

    Returns:
        The measurements of each object.
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
    """Converts an object on the canvas to one on an image that is `size` pixels high and wide."""
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
    """Scales a centre and a span of pixels to an axis that has `scale` times as many pixels.

    Pixel i reaches from i - 0.5 to i + 0.5, so the edges of the image stay its edges.
    """
    first = math.floor(start * scale + 0.5)
    after = max(math.floor((start + length) * scale + 0.5), first + 1)
    return (centre + 0.5) * scale - 0.5, first, after - first


def _measure_one(
    location: np.ndarray,
    sprite: np.ndarray,
    score: float,
    canvas: tuple[int, int],
    picture: np.ndarray | None,
    likelihood: Likelihood,
) -> Measured:
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
    """Computes the centre of mass of weights.

    Args:
        weights: [H, W].

    Returns:
        Its row and column; (0, 0) if all weights are 0.
    """
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
    """Makes the record of an image.

    Args:
        name: the image's name.
        size: height and width of the user's image.
        found: the measured objects.
        unexplained: share of the foreground that no sprite covers; None if there is no foreground.
        log_p: the bound on log p(x) in nats; None if it was not computed.

    Returns:
        `image` (the name), `height`, `width`, `count`, `unexplained`, `log_p`, `error` (None) and
        `objects`, a dictionary of the fields of `Measured` for each object.
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
    """Makes the record of an image that could not be read.

    Args:
        name: the image's name.
        error: what went wrong.

    Returns:
        A record with the error and without objects.
    """
    nothing = dict.fromkeys(("height", "width", "count", "unexplained", "log_p"))
    return {"image": name, **nothing, "error": error, "objects": []}


def label_image(record: Record) -> np.ndarray:
    """Combines the masks of an image's objects.

    Args:
        record: the record of an image; `analysis.analyse` adds masks with its option `masks`.

    Returns:
        [H, W], int32: 0 for the background, and k + 1 for object k.
    """
    found = [thing["mask"] for thing in record["objects"]]
    return masks.decode(found, (record["height"], record["width"]))


# --- files -------------------------------------------------------------------

OPTIONAL = ("area", "group")  # columns that objects may have besides those of `Measured`


def _write_csv(records: Sequence[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """Writes a file of objects, and one of images."""
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


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _write_lines(records: Sequence[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """Writes a line of JSON for each image, with its objects."""
    with path.open("w") as file:
        file.writelines(map(_line, records))
    return [path]


def _write_coco(records: Sequence[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """Writes COCO's JSON: boxes are [left, top, width, height], groups are categories."""
    images: list[Record] = []
    annotations: list[Record] = []
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
    """Collects records for a file, which is written when all of them are complete.

    Until then, the records are stored in a file next to it, so that an interrupted run resumes
    if it is repeated with the same flags. Stored records of a run with other flags are discarded.

    Attributes:
        output: the file to write.
        records: the records so far.
    """

    def __init__(self, output: pathlib.Path, about: dict[str, Any]):
        """Reads the records of an interrupted run, if there are any.

        Args:
            output: the file to write.
            about: all that the records depend on, in JSON's types.
        """
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
        """Adds records, and stores them.

        Args:
            records: records of the next images.
        """
        with self._path.open("a") as file:
            file.writelines(map(_line, records))
        self.records += records

    def finish(self) -> list[pathlib.Path]:
        """Writes the file, and deletes the stored records.

        Returns:
            The files that were written.
        """
        written = WRITERS[self.output.suffix](self.records, self.output)
        self._path.unlink()
        return written


def _line(content: Any) -> str:
    return json.dumps(content) + "\n"
