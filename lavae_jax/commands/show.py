"""Writes a labelled grid of scenes.

    python launch/show_data.py --dataset=multi_dsprites --split=test_7 --output=grid.png    # scenes

The title of each scene lists its objects: digits for multi_mnist; size, shape
and colour for multi_dsprites. Ground truth centres are marked.

    lavae show --path=my_images/ --invert

shows images of your own as a model would see them, and the sizes of their connected parts
(..._sizes.png), and proposes the settings to train with.
"""

import pathlib
import shlex

import numpy as np
from absl import app, flags

from lavae_jax import crops as custom
from lavae_jax import figures, gallery, images, input_pipeline
from lavae_jax.commands import data_flags, program, scene_data

flags.adopt_module_key_flags(data_flags)
SPLIT = flags.DEFINE_string("split", "test", "train, test or test_7.")
OUTPUT = flags.DEFINE_string("output", "grid.png", "The picture to write.")
COUNT = flags.DEFINE_integer("count", 24, "Number of scenes.", lower_bound=1)
START = flags.DEFINE_integer("start", 0, "First scene.", lower_bound=0)
PATH = flags.DEFINE_string(
    "path", "", "Custom images: a folder, an .npy or .npz file, or tfds:name/config."
)
MEMBER = flags.DEFINE_string("member", "", "The array of an .npz, or the split of a TFDS data set.")
INVERT = flags.DEFINE_bool("invert", False, "Objects are dark on a bright background.")
THRESHOLD = flags.DEFINE_string("threshold", "otsu", "A number from 0 to 1, otsu or stochastic.")
CHANNELS = flags.DEFINE_integer("channels", 1, "Of the model: 1 or 3.")

LARGEST = 512  # pixels, of the crops that sizes are measured in
COLOR_NAMES = ("blue", "green", "cyan", "red", "magenta", "yellow", "white")  # of shapes.COLORS
DIGITS = "Titles: the number of objects and their digits. Crosses: locations."


def factors_caption() -> str:
    shapes = ", ".join(scene_data.load().shapes.SHAPES)
    return (
        f"Titles: the number of objects, then size (0 to 5), shape ({shapes}) and "
        f"colour ({', '.join(COLOR_NAMES)}) of each. Crosses: locations."
    )


def describe(example: dict) -> str:
    """The objects of a scene, abbreviated."""
    n = example["count"]
    if "labels" in example:
        objects = [str(label) for label in example["labels"][:n]]
    else:
        shapes = scene_data.load().shapes
        factors = zip(*(example[k][:n] for k in ("scale", "shape", "color")), strict=True)
        objects = [f"{k}{shapes.SHAPES[s][0]}{COLOR_NAMES[c][0].upper()}" for k, s, c in factors]
    lines = [" ".join(objects[i : i + 4]) for i in range(0, n, 4)]
    return f"{n}: " + "\n".join(lines)


def show_images(output: pathlib.Path) -> None:
    """The user's own, and what to train with."""
    opened = images.open_images(PATH.value, MEMBER.value, data_flags.DATA_DIR.value)
    preprocessing = custom.make_preprocessing(
        opened, CHANNELS.value, INVERT.value, THRESHOLD.value, skip_unreadable=True
    )
    whole = custom.Crops(opened, preprocessing, (LARGEST, LARGEST), skip_unreadable=True)
    for reason in whole.skipped:
        print(f"not read: {reason}")
    sides = np.array(whole.shapes)
    whole = whole.with_canvas(tuple(np.minimum(sides.max(0), LARGEST).tolist()))
    found = custom.parts(whole)
    custom.check_foreground(found.foreground, preprocessing)
    side = min(int(np.median(sides)), LARGEST)
    canvas = custom.propose(found, side).canvas
    crops = whole.with_canvas((canvas, canvas))
    proposed = custom.propose(found._replace(count=custom.parts(crops).count), side)
    custom.check(crops, proposed.sprite_size, proposed.max_objects)
    index = _shown(len(crops))
    panels = [figures.Panel(image) for image in crops.read(index)["image"]]
    caption = f"{PATH.value}: canvases of {canvas} pixels as the model sees them."
    grid = figures.panels(figures.in_rows(panels, 8), caption=caption, panel_inches=1.2)
    figures.save(grid, output)
    histogram = output.with_name(f"{output.stem}_sizes{output.suffix}")
    figures.save(figures.sizes(found.side, proposed.sprite_size), histogram)
    smallest, largest = ("x".join(map(str, side)) for side in (sides.min(0), sides.max(0)))
    threshold = preprocessing.threshold
    threshold = threshold if isinstance(threshold, str) else f"{threshold:.3f}"
    settings = {
        "dataset.path": PATH.value,
        "dataset.canvas": canvas,
        "model.sprite_size": proposed.sprite_size,
        "model.max_objects": proposed.max_objects,
        **({"dataset.invert": True} if INVERT.value else {}),
        **({"dataset.threshold": THRESHOLD.value} if THRESHOLD.value != "otsu" else {}),
        **({"dataset.member": MEMBER.value} if MEMBER.value else {}),
        **({"dataset.data_dir": data_flags.DATA_DIR.value} if data_flags.DATA_DIR.value else {}),
        **({"dataset.unreadable": "skip"} if whole.skipped else {}),
        **({"model.channels": CHANNELS.value} if CHANNELS.value != 1 else {}),
    }
    command = ["lavae", "train", "--config=images:cpu"]
    command += [f"--config.{name}={value}" for name, value in settings.items()]
    print(
        f"{len(crops):,} images of {smallest} to {largest} pixels; threshold {threshold}, "
        f"{found.foreground:.1%} of the pixels are foreground; {len(found.side):,} connected parts "
        f"in {len(found.count)} of them, of {np.median(found.side):.0f} pixels (median), the "
        f"largest {found.side.max()}\nwritten to {output} and {histogram}\n"
        f"to train:\n  {shlex.join(command)}"
    )
    if 2 * proposed.sprite_size > canvas:
        print(
            f"parts of up to {found.side.max()} pixels are hardly objects: if the threshold cuts "
            f"through the background (see {output}), try another, such as --threshold=0.5"
        )


def _shown(length: int) -> range:
    index = range(START.value, min(START.value + COUNT.value, length))
    if not index:
        raise app.UsageError(f"--start={START.value}: there are {length:,} scenes")
    return index


def main():
    output = program.output_file(OUTPUT.value, program.PICTURES)
    if PATH.value or data_flags.DATASET.value == "images":
        return show_images(output)
    builder = data_flags.make_builder()
    scene_data.check_splits(builder, [SPLIT.value])
    scene_data.load().prepare(builder)
    source = input_pipeline.open_split(builder, SPLIT.value, tuple(builder.info.features))
    index = _shown(len(source))
    batch = source.read(index)
    examples = [{k: v[i] for k, v in batch.items()} for i in range(len(index))]
    figure = gallery.scenes(
        batch["image"],
        [describe(example) for example in examples],
        [example["locations"][: example["count"]] for example in examples],
        DIGITS if "labels" in batch else factors_caption(),
    )
    figures.save(figure, output)
    print(f"{builder.info.full_name} {SPLIT.value} {index.start} to {index.stop - 1}: {output}")


def run():
    program.run(main)
