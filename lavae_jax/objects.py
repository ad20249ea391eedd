"""What is found in images, as numbers for people and other programs."""

import csv
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from lavae_jax.scene import Scene

LIT = 0.5
OVERLAY = 512  # the side, in pixels, that overlays of small images are enlarged to

Record = dict[str, Any]  # of an image: see `record`


class Measured(NamedTuple):
    """An object on its image, in pixels."""

    row: float  # the centre of mass of its sprite
    column: float
    top: int  # its box: the pixels that are more likely lit than not
    left: int
    height: int
    width: int
    score: float  # the probability that it is one
    brightness: float | None  # the mean of the image over those pixels


def measure(scene: Scene, sprites: np.ndarray, picture: np.ndarray | None) -> list[Measured]:
    """The objects of one scene with sprites [M, h, w, C], on a picture [H, W] or [H, W, C]."""
    number = int(scene.count[0])
    location = np.clip(scene.location[0, :number], 0, np.array(scene.canvas) - 1)
    scores = np.ones(number) if scene.score is None else np.asarray(scene.score[0, :number])
    picture = None if picture is None else np.asarray(picture, np.float32)
    brightest = sprites[:number].max(-1)
    return [
        _measure_one(*one, scene.canvas, picture)
        for one in zip(location, brightest, scores, strict=True)
    ]


def _measure_one(location, sprite, score, canvas, picture) -> Measured:
    first = location - np.array(sprite.shape) // 2
    rows, columns = (first[k] + np.arange(sprite.shape[k]) for k in (0, 1))
    on_rows, on_columns = (rows >= 0) & (rows < canvas[0]), (columns >= 0) & (columns < canvas[1])
    rows, columns, seen = rows[on_rows], columns[on_columns], sprite[on_rows][:, on_columns]
    total = max(float(seen.sum()), 1e-9)
    lit = seen > min(LIT, 0.999 * seen.max())  # a faint sprite has a box, too
    lit_rows, lit_columns = rows[lit.any(1)], columns[lit.any(0)]
    brightness = None
    if picture is not None:
        window = picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        window = window.max(-1) if window.ndim == 3 else window
        brightness = float(window[lit].mean())
    return Measured(
        float(seen.sum(1) @ rows / total),
        float(seen.sum(0) @ columns / total),
        int(lit_rows[0]),
        int(lit_columns[0]),
        int(lit_rows[-1] - lit_rows[0] + 1),
        int(lit_columns[-1] - lit_columns[0] + 1),
        float(score),
        brightness,
    )


# --- files -------------------------------------------------------------------


def record(
    name: str,
    canvas: tuple[int, int],
    found: list[Measured],
    unexplained: float | None,
    log_p: float | None,
) -> Record:
    """All that is to be said of an image.

    unexplained: the share of its lit pixels that no sprite covers; None if no pixel is lit.
    log_p: the bound on log p(x) in nats, where the image is binary.
    """
    return {
        "image": name,
        "height": canvas[0],
        "width": canvas[1],
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


def _write_csv(records: Iterable[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """Objects, and beside them a summary of the images."""
    summary = path.with_name(f"{path.stem}_images{path.suffix}")
    with path.open("w", newline="") as objects, summary.open("w", newline="") as images:
        rows = csv.writer(objects)
        rows.writerow(["image", "object", *Measured._fields])
        summaries = csv.writer(images)
        summaries.writerow(["image", "height", "width", "count", "unexplained", "log_p", "error"])
        for one in records:
            for number, thing in enumerate(one["objects"]):
                rows.writerow([one["image"], number, *map(_rounded, thing.values())])
            summaries.writerow([_rounded(v) for k, v in one.items() if k != "objects"])
    return [path, summary]


def _rounded(value):
    return round(value, 4) if isinstance(value, float) else value


def _write_lines(records: Iterable[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """A line of JSON for each image, with its objects."""
    with path.open("w") as file:
        file.writelines(map(_line, records))
    return [path]


def _write_coco(records: Iterable[Record], path: pathlib.Path) -> list[pathlib.Path]:
    """COCO's JSON: boxes are [left, top, width, height]."""
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
                    "category_id": 1,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                    "score": thing["score"],
                }
            )
    categories = [{"id": 1, "name": "object"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content) + "\n")
    return [path]


WRITERS: dict[str, Callable[[Iterable[Record], pathlib.Path], list[pathlib.Path]]] = {
    ".csv": _write_csv,
    ".jsonl": _write_lines,
    ".json": _write_coco,
}


class Unfinished:
    """Records on their way to a file, which is written when all are there.

    Until then they are beside it, so that a run with the same flags, `about`, goes on after an
    interruption. Those of a run with other flags go.
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


def overlay(picture: np.ndarray, found: list[Measured]) -> Image.Image:
    """The picture [H, W, C] in 0..1 with numbered boxes; small ones are enlarged."""
    levels = np.rint(255 * np.broadcast_to(picture, (*picture.shape[:2], 3))).astype(np.uint8)
    scale = max(1, OVERLAY // max(picture.shape[:2]))
    image = Image.fromarray(levels).resize(
        (scale * picture.shape[1], scale * picture.shape[0]), Image.Resampling.NEAREST
    )
    draw = ImageDraw.Draw(image)
    for number, thing in enumerate(found):
        left, top = scale * thing.left - 1, scale * thing.top - 1
        right, bottom = left + scale * thing.width + 1, top + scale * thing.height + 1
        draw.rectangle([left, top, right, bottom], outline="orange", width=max(1, scale // 4))
        draw.text((left + 2, top - 11 if top > 11 else bottom + 1), str(number), fill="yellow")
    return image
