"""Counts and locates the objects of your images with a trained model.

    python launch/infer.py --checkpoint=runs/images-cpu --images=new_images/ --output=objects.csv
    python launch/infer.py --checkpoint=mnist1k --images=page.png --invert --overlay=overlays/

A row for each object: the centre of mass of its sprite, its box, the probability that it is one,
and its brightness; and one for each image: how many there are, and how much of the image they do
not explain, so that you see which images not to trust. The ending of --output picks the format:
.csv (with a second file, ..._images.csv), .jsonl, or .json for COCO's. Images of any size; large
ones are taken apart in tiles. A run that is stopped goes on where it was.
"""

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator

import _program
import model_flags
import numpy as np
import tqdm
from absl import app, flags

import lavae_jax
from datasets import DatasetError, images
from lavae_jax import objects

flags.declare_key_flag("checkpoint")
flags.declare_key_flag("data_dir")
IMAGES = flags.DEFINE_string(
    "images", None, "A folder, an image, an .npy or .npz file, or tfds:name/config."
)
MEMBER = flags.DEFINE_string("member", "", "The array of an .npz, or the split of a TFDS data set.")
OUTPUT = flags.DEFINE_string("output", "objects.csv", "The file to write: .csv, .jsonl or .json.")
OVERLAY = flags.DEFINE_string("overlay", None, "A folder for the images with numbered boxes.")
MAX_OBJECTS = flags.DEFINE_integer(
    "max_objects", None, "The most to be found in an image [as many as there are].", lower_bound=1
)
MIN_SCORE = flags.DEFINE_float(
    "min_score", 0.0, "Leave out objects that are less probable.", 0.0, 1.0
)
INVERT = flags.DEFINE_bool("invert", None, "Objects are dark on bright [as in training].")
THRESHOLD = flags.DEFINE_float(
    "threshold", None, "Pixels above it are lit, from 0 to 1 [as in training].", 0.0, 1.0
)
NUM_SAMPLES = flags.DEFINE_integer(
    "num_samples", 20, "For the bound on log p(x) of binary images; 0 for none.", lower_bound=0
)
flags.mark_flag_as_required("images")

AT_ONCE, MANY_PIXELS = 64, 1 << 22  # images, and their pixels
MULTIPLE = 64  # pixels, to which images of different sizes are filled up


def make_look(model: lavae_jax.Model) -> images.Look:
    """How the model saw images in training, or as the flags say."""
    flagged = {"invert": INVERT.value, "threshold": THRESHOLD.value}
    flagged = {name: value for name, value in flagged.items() if value is not None}
    return dataclasses.replace(images.trained_look(model.config), **flagged)


def main():
    output = _program.output_file(OUTPUT.value)
    if output.suffix not in objects.WRITERS:
        there_are = ", ".join(objects.WRITERS)
        raise app.UsageError(f"--output={OUTPUT.value}: the ending must be one of {there_are}")
    overlays = _program.output_folder(OVERLAY.value) if OVERLAY.value else None
    model = model_flags.load()
    if not isinstance(model, lavae_jax.Model):
        raise app.UsageError("a baseline knows no objects; give --checkpoint a LAVAE")
    data_dir = model_flags.DATA_DIR.value or model.config.dataset.get("data_dir") or None
    source = images.open_images(IMAGES.value, MEMBER.value, data_dir)
    look = make_look(model)
    names = hashlib.sha256("\n".join(source.names).encode()).hexdigest()
    about = {"model": model.fingerprint, "images": IMAGES.value, "names": names}
    about |= {"look": list(vars(look).values()), "max_objects": MAX_OBJECTS.value}
    about |= {"num_samples": NUM_SAMPLES.value, "overlay": OVERLAY.value}
    about |= {"min_score": MIN_SCORE.value}
    unfinished = objects.Unfinished(output, about)
    before = len(unfinished.records)
    if before:
        print(f"going on after {before:,} of {len(source):,} images")
    started = time.monotonic()
    with tqdm.tqdm(total=len(source), initial=before, unit="image", mininterval=1.0) as progress:
        least = model.settings.max_objects  # pixels
        for chunk in _chunks(source, range(before, len(source)), look, least):
            unfinished.add(_infer(model, source, chunk, look, overlays))
            progress.update(len(chunk))
    records, written = unfinished.records, unfinished.finish()
    _report(records, (len(records) - before) / max(time.monotonic() - started, 1e-9))
    print(f"written to {' and '.join(map(str, written))}")
    return 1 if all(record["error"] for record in records) else 0


def _chunks(source, numbers, look, least: int) -> Iterator[dict[int, np.ndarray | DatasetError]]:
    """Images, or what is wrong with them; as many at a time as memory has room for."""
    chunk, pixels = {}, 0
    for i in numbers:
        try:
            chunk[i] = look.grey(source[i], source.names[i])
            pixels += chunk[i].size
            if chunk[i].size < least:
                raise DatasetError(f"{source.names[i]} has only {chunk[i].size} pixels")
        except DatasetError as error:
            chunk[i] = error
        if len(chunk) == AT_ONCE or pixels > MANY_PIXELS:
            yield chunk
            chunk, pixels = {}, 0
    if chunk:
        yield chunk


def _infer(model, source, chunk, look, overlays) -> list[objects.Record]:
    """The records of some images, in their order."""
    records = {
        i: objects.failure(source.names[i], str(error))
        for i, error in chunk.items()
        if isinstance(error, DatasetError)
    }
    grey = {i: image for i, image in chunk.items() if i not in records}
    lit = {i: _fill_up(g > look.threshold, grey) for i, g in grey.items()}
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, image in lit.items():
        by_shape.setdefault(image.shape, []).append(i)
    for places in by_shape.values():
        batch = np.stack([lit[i] for i in places])
        scene = model.infer(batch, max_objects=MAX_OBJECTS.value or math.inf)
        covered = np.asarray(model.render(scene)) > objects.LIT
        bounds = _bounds(model, batch, [grey[i] for i in places], np.asarray(scene.count))
        for k, i in enumerate(places):
            # On the image as it is: what was filled up is not part of it.
            whole = dataclasses.replace(scene[k], canvas=grey[i].shape[:2])
            (found,) = model.measure(whole, [grey[i]])
            found = [thing for thing in found if thing.score >= MIN_SCORE.value]
            lit_pixels = int(batch[k].sum())
            missed = (batch[k] & ~covered[k]).sum() / lit_pixels if lit_pixels else None
            name = source.names[i]
            records[i] = objects.record(name, grey[i].shape[:2], found, missed, bounds[k])
            if overlays:
                file = overlays / f"{name}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                objects.overlay(grey[i], found).save(file)
    return [records[i] for i in chunk]


def _fill_up(image: np.ndarray, others: dict[int, np.ndarray]) -> np.ndarray:
    """With black, to few different sizes if there are different ones, since each is compiled."""
    if len({other.shape for other in others.values()}) == 1:
        return image
    below, right = (-side % MULTIPLE for side in image.shape[:2])
    return np.pad(image, ((0, below), (0, right), (0, 0)))


def _bounds(model, batch, grey, count) -> list[float | None]:
    """On log p(x), where an image has two values only and p(n) knows its number of objects."""
    most, shape = model.settings.max_objects, batch.shape[1:]
    known = [k for k, image in enumerate(grey) if image.shape == shape and count[k] <= most]
    known = [k for k in known if len(np.unique(grey[k])) <= 2]
    if not NUM_SAMPLES.value or not known or batch[0].size > lavae_jax.api.LARGE:
        return [None] * len(batch)
    log_p = model.bound(batch[known], NUM_SAMPLES.value).log_p
    return [float(log_p[known.index(k)]) if k in known else None for k in range(len(batch))]


def _report(records: list[objects.Record], rate: float) -> None:
    failed = [record for record in records if record["error"]]
    good = [record for record in records if not record["error"]]
    for record in failed[:10]:
        print(f"not read: {record['error']}")
    if len(failed) > 10:
        print(f"and {len(failed) - 10} more files that could not be read")
    if not good:
        return
    number = sum(record["count"] for record in good)
    dark = [record["image"] for record in good if record["unexplained"] is None]
    if dark:
        print(f"{len(dark):,} images have no lit pixel, {dark[0]} for one: --invert, --threshold?")
    good = [record for record in good if record["unexplained"] is not None]
    if not good:
        return
    missed = np.array([record["unexplained"] for record in good])
    print(
        f"{number:,} objects in {len(good):,} images ({rate:.1f} images/s); lit pixels that they "
        f"do not explain: {np.median(missed):.1%} (median), {missed.max():.1%} in "
        f"{good[int(missed.argmax())]['image']}"
    )


if __name__ == "__main__":
    _program.run(main)
