"""Counts and locates the objects of your images with a trained model.

    lavae infer --checkpoint=runs/images-cpu --images=new_images/ --output=objects.csv
    lavae infer --checkpoint=mnist1k --images=page.png --invert --overlay=overlays/
    lavae infer --checkpoint=runs/images-cpu --images=new_images/ --masks=masks/ --groups=12 \\
        --report=report.html

Writes a row for each object: the centre of mass of its sprite, its box, the probability that it is
an object, and its brightness; and a row for each image: the number of objects, and the share of the
foreground that they do not explain. If that share is large, do not trust the results. The ending of
--output determines the format: .csv (with a second file, ..._images.csv), .jsonl, or .json for
COCO's, which includes masks. Images may be of any size; large ones are processed in tiles.
Repeating the command after an interruption resumes the run.

--masks writes a 16-bit label image for each image: 0 for the background, and k + 1 for object k. It
is a TIFF if the image is one, and otherwise a PNG. --groups sorts the objects into groups by
appearance; each object has the number of its group, and ..._groups.png shows the groups. --report
writes one HTML file with sizes, counts, detections, groups, and the least certain images.

In Python, `lavae_jax.analyse` returns the same records.
"""

import math
import pathlib
import time
from typing import Any

import numpy as np
import tqdm
from absl import app, flags

from lavae_jax import analysis, groups, images, masks, objects, pictures, report
from lavae_jax.commands import model_flags, program

flags.declare_key_flag("checkpoint")
flags.declare_key_flag("data_dir")
IMAGES = flags.DEFINE_string(
    "images", None, "A folder, an image, an .npy or .npz file, or tfds:name/config."
)
MEMBER = flags.DEFINE_string("member", "", "The array of an .npz, or the split of a TFDS data set.")
OUTPUT = flags.DEFINE_string("output", "objects.csv", "The file to write: .csv, .jsonl or .json.")
OVERLAY = flags.DEFINE_string("overlay", None, "A folder for the images with outlines of objects.")
MASKS = flags.DEFINE_string("masks", None, "A folder for a label image of each image.")
GROUPS = flags.DEFINE_integer(
    "groups", None, "Number of groups to sort the objects into, by appearance.", lower_bound=1
)
REPORT = flags.DEFINE_string("report", None, "The HTML file of a report to write.")
MAX_OBJECTS = flags.DEFINE_integer(
    "max_objects", None, "The largest number of objects in an image [no limit].", lower_bound=1
)
MIN_SCORE = flags.DEFINE_float("min_score", 0.0, "Leave out less probable objects.")
INVERT = flags.DEFINE_bool(
    "invert", None, "Objects are dark on a bright background [as in training]."
)
THRESHOLD = flags.DEFINE_string(
    "threshold",
    None,
    "Pixels above it are foreground: a number from 0 to 1, or auto [that of the model].",
)
NUM_SAMPLES = flags.DEFINE_integer(
    "num_samples",
    0,
    "Samples for a bound on log p(x) of binary images (of the first 8 sizes); 0 for none.",
    lower_bound=0,
)
flags.mark_flag_as_required("images")
flags.register_validator("min_score", lambda value: 0 <= value <= 1, "must be from 0 to 1")


def load_model():
    """Loads the model that the flags name.

    Returns:
        The model, with the preprocessing of its training except where flags change it.

    Raises:
        UsageError: the threshold is neither a number nor "auto".
    """
    model = model_flags.load_lavae()
    changes: dict[str, Any] = {}
    if INVERT.value is not None:
        changes["invert"] = INVERT.value
    if THRESHOLD.value is not None:
        changes["threshold"] = _threshold(THRESHOLD.value)
    return model.with_preprocessing(**changes)


def _threshold(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        if text == "auto":
            return text
        raise app.UsageError(f"--threshold={text} must be a number from 0 to 1, or auto") from None


def main():
    """Analyses the images, and writes the records and pictures.

    Returns:
        1 if no image could be read; otherwise 0.
    """
    output = program.output_file(OUTPUT.value, tuple(objects.WRITERS))
    overlays = program.output_folder(OVERLAY.value, "overlay") if OVERLAY.value else None
    labels = program.output_folder(MASKS.value, "masks") if MASKS.value else None
    page = program.output_file(REPORT.value, (".html",), "report") if REPORT.value else None
    model = load_model()
    data_dir = model_flags.DATA_DIR.value or model.config.dataset.get("data_dir") or None
    source = images.open_images(str(IMAGES.value), MEMBER.value, data_dir)
    wanted = analysis.Wanted(
        MAX_OBJECTS.value or math.inf,
        MIN_SCORE.value,
        NUM_SAMPLES.value,
        masks=bool(overlays or labels or page) or output.suffix == ".json",
        appearances=GROUPS.value is not None,
    )
    about = {"model": model.fingerprint, "images": IMAGES.value, "content": source.fingerprint}
    about |= {"preprocessing": list(vars(model.preprocessing).values()), "wanted": list(wanted)}
    about |= {"overlay": OVERLAY.value, "masks": MASKS.value}
    partial = objects.PartialRecords(output, about)
    before = len(partial.records)
    if before:
        print(f"resuming after {before:,} of {len(source):,} images")

    def draw(number, raw, record):
        name = source.names[number]
        if overlays:
            pictures.overlay(raw, record).save(_file(overlays, f"{name}.png"))
        if labels:
            keeps = name.lower().endswith((".png", ".tif", ".tiff"))
            masks.write(
                objects.label_image(record), _file(labels, name if keeps else f"{name}.png")
            )

    started = time.monotonic()
    done = list(partial.records)
    chunks = analysis.analyse_in_chunks(model, source, wanted, done, draw)
    with tqdm.tqdm(total=len(source), initial=before, unit="image", mininterval=1.0) as progress:
        for records in chunks:
            partial.add(records)
            progress.update(len(records))
    rate = (len(partial.records) - before) / max(time.monotonic() - started, 1e-9)
    written, found, sprites = [], [], []
    if GROUPS.value and (found := groups.find(partial.records, GROUPS.value)):
        sprites = model.decode(groups.typical_appearances(partial.records, found))
        partial.records = groups.assign(partial.records, found)
        written.append(output.with_name(f"{output.stem}_groups.png"))
        pictures.of_groups(found, sprites, partial.records, source).save(written[-1])
    if page:
        title = f"Objects in {IMAGES.value}"
        by = f"found by {model_flags.CHECKPOINT.value}"
        report.write(page, title, partial.records, source, found, sprites, subtitle=by)
        written.append(page)
    records, written = partial.records, partial.finish() + written
    _report(records, rate)
    print(f"written to {', '.join(map(str, written))}")
    return 1 if all(record["error"] for record in records) else 0


def _file(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The path of a file, whose folder is created if necessary."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _report(records: list[objects.Record], rate: float) -> None:
    failed = [record for record in records if record["error"]]
    good = [record for record in records if not record["error"]]
    for record in failed[:10]:
        print(f"not read: {record['error']}")
    if len(failed) > 10:
        print(f"and {_number(len(failed) - 10, 'other file')} that could not be read")
    if not good:
        return
    number = sum(record["count"] for record in good)
    with_foreground = [record for record in good if record["unexplained"] is not None]
    text = f"{_number(number, 'object')} in {_number(len(good), 'image')} ({rate:.1f} images/s)"
    if with_foreground:
        missed = np.array([record["unexplained"] for record in with_foreground])
        worst = with_foreground[int(missed.argmax())]["image"]
        text += (
            f"; share of the foreground that they do not explain: {np.median(missed):.1%} "
            f"(median), {missed.max():.1%} (maximum, in {worst})"
        )
    print(text)
    empty = [record["image"] for record in good if record["unexplained"] is None]
    if empty:
        print(
            f"{_number(len(empty), 'image')} without foreground, such as {empty[0]}. If there "
            "should be objects, try --invert or --threshold"
        )


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def run():
    """Runs the program."""
    program.run(main)
