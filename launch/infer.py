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
    "num_samples",
    20,
    "For the bound on log p(x) of binary images (of the first 8 sizes that occur); 0 for none.",
    lower_bound=0,
)
flags.mark_flag_as_required("images")

AT_ONCE, MANY_PIXELS = 64, 1 << 22  # images, and their pixels
MULTIPLE = 32  # pixels, to which images are filled up
SIZES = 8  # of images that have a bound, since each is compiled


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
    about = {"model": model.fingerprint, "images": IMAGES.value, "content": source.fingerprint}
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
            sizes = [(record["height"], record["width"]) for record in unfinished.records]
            unfinished.add(_infer(model, source, chunk, look, overlays, sizes))
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
            if (there := math.prod(chunk[i].shape[:2])) < least:
                raise DatasetError(f"{source.names[i]} has only {there} pixels")
        except DatasetError as error:
            chunk[i] = error
        if len(chunk) == AT_ONCE or pixels > MANY_PIXELS:
            yield chunk
            chunk, pixels = {}, 0
    if chunk:
        yield chunk


def _infer(model, source, chunk, look, overlays, sizes_before) -> list[objects.Record]:
    """The records of some images, in their order."""
    records = {
        i: objects.failure(source.names[i], str(error))
        for i, error in chunk.items()
        if isinstance(error, DatasetError)
    }
    grey = {i: image for i, image in chunk.items() if i not in records}
    lit = {i: image > look.threshold for i, image in grey.items()}
    bounds = _bounds(model, grey, lit, sizes_before)
    filled_up = {i: _filled_up(image) for i, image in lit.items()}
    for places in lavae_jax.api.by_shape(filled_up):
        batch = np.stack([filled_up[i] for i in places])
        scene = model.infer(batch, max_objects=MAX_OBJECTS.value or math.inf)
        likely = (np.asarray(scene.score) >= MIN_SCORE.value).sum(1)  # the likeliest come first
        scene = dataclasses.replace(scene, count=np.minimum(scene.count, likely))
        covered = np.asarray(model.render(scene)) > objects.LIT
        for k, i in enumerate(places):
            # On the image as it is: what was filled up is not part of it.
            whole = dataclasses.replace(scene[k], canvas=grey[i].shape[:2])
            (found,) = model.measure(whole, [grey[i]])
            lit_pixels = int(batch[k].sum())
            missed = (batch[k] & ~covered[k]).sum() / lit_pixels if lit_pixels else None
            name = source.names[i]
            records[i] = objects.record(name, grey[i].shape[:2], found, missed, bounds.get(i))
            if overlays:
                file = overlays / f"{name}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                objects.overlay(source[i], found).save(file)
    return [records[i] for i in chunk]


def _filled_up(image: np.ndarray) -> np.ndarray:
    """With black, to one of few sizes, since each is compiled. So what is found in an image does
    not depend on the others."""
    below, right = (-side % MULTIPLE for side in image.shape[:2])
    return np.pad(image, ((0, below), (0, right), (0, 0)))


def _bounds(model, grey, lit, sizes_before: list[tuple]) -> dict[int, float]:
    """On log p(x), where an image has two values only, p(n) knows its number of objects, and its
    size is one of the first that occur. Images are as they are: filling up would make others of
    them."""
    if not NUM_SAMPLES.value:
        return {}
    sizes = dict.fromkeys((*sizes_before, *(image.shape[:2] for image in lit.values())))
    sizes = [size for size in sizes if size[0] and math.prod(size) <= lavae_jax.api.LARGE][:SIZES]
    binary = {i: lit[i] for i, image in grey.items() if len(np.unique(image)) <= 2}
    bounds = {}
    known_sizes = {i: x for i, x in binary.items() if x.shape[:2] in sizes}
    for places in lavae_jax.api.by_shape(known_sizes):
        counts = model.num_objects(np.stack([lit[i] for i in places]))
        few = counts <= model.settings.max_objects
        known = np.array(places)[few].tolist()
        if known:
            x, most = np.stack([lit[i] for i in known]), int(counts[few].max())
            log_p = model.bound(x, NUM_SAMPLES.value, places=known, max_objects=most).log_p
            bounds |= dict(zip(known, map(float, log_p), strict=True))
    return bounds


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
