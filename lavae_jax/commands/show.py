"""Draws a grid of scenes or of custom images.

    python launch/show_data.py --dataset=multi_dsprites --split=test_7 --output=grid.png
    lavae show --path=my_images/ --invert

Scenes are drawn with marks at the true centres. The title of a scene lists its objects: digits for
multi_mnist; size, shape and colour for multi_dsprites.

Custom images are drawn as a model would see them. A second picture (..._sizes.png) is a histogram
of the sizes of their connected components. The program proposes a command for training, and
estimates how long that takes on this machine. Grey images of solid objects are normalised (see
--levels); others are binarised by a threshold.
"""

import pathlib
import shlex

import numpy as np
from absl import app, flags

from lavae_jax import crops as custom
from lavae_jax import figures, gallery, images, input_pipeline, normalisation
from lavae_jax.commands import data_flags, program, run_data, scene_data
from lavae_jax.errors import UserError
from lavae_jax.preprocessing import ImageError, Preprocessing
from lavae_jax.recipes import images as recipe_of_images
from lavae_jax.training import loop

flags.adopt_module_key_flags(data_flags)
SPLIT = flags.DEFINE_string(
    "split", "test", "train, test, or test_N with N objects in every scene (usually test_7)."
)
OUTPUT = flags.DEFINE_string("output", "grid.png", "The picture to write.")
COUNT = flags.DEFINE_integer("count", 24, "Number of scenes or images.", lower_bound=1)
START = flags.DEFINE_integer("start", 0, "Index of the first scene or image.", lower_bound=0)
PATH = flags.DEFINE_string(
    "path", "", "Custom images: a folder, an .npy or .npz file, or tfds:name/config."
)
MEMBER = flags.DEFINE_string("member", "", "The array of an .npz, or the split of a TFDS data set.")
INVERT = flags.DEFINE_bool("invert", False, "Objects are dark on a bright background.")
THRESHOLD = flags.DEFINE_string("threshold", "otsu", "A number from 0 to 1, otsu or stochastic.")
LEVELS = flags.DEFINE_enum(
    "levels",
    "auto",
    ["auto", "grey", "binary"],
    "What the model sees: grey levels, normalised and zoomed to the usual size of objects, or the "
    "foreground above --threshold. auto: grey if images are grey and their objects solid.",
)
FORECAST = flags.DEFINE_bool(
    "forecast", True, "Custom images: time a few steps of training to estimate how long it takes."
)
CHANNELS = flags.DEFINE_integer("channels", 1, "Channels of the model: 1 or 3.")

LARGEST = 512  # pixels: the side of the crops in which sizes are measured
COLOR_NAMES = ("blue", "green", "cyan", "red", "magenta", "yellow", "white")  # of shapes.COLORS
DIGITS = "Titles: the number of objects and their digits. Crosses: locations."


def factors_caption() -> str:
    """Explains the titles of multi-dSprites scenes.

    Returns:
        The caption.
    """
    shapes = ", ".join(scene_data.load().shapes.SHAPES)
    return (
        f"Titles: the number of objects, then size (0 to 5), shape ({shapes}) and "
        f"colour ({', '.join(COLOR_NAMES)}) of each. Crosses: locations."
    )


def describe(example: dict) -> str:
    """Describes the objects of a scene, abbreviated.

    Args:
        example: the features of the scene.

    Returns:
        The title of the scene.
    """
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
    """Draws custom images, and prints a command for training.

    Args:
        output: the picture to write.
    """
    opened = images.open_images(PATH.value, MEMBER.value, data_flags.DATA_DIR.value)
    if _is_grey(opened):
        return _show_grey(opened, output)
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
    value = preprocessing.threshold
    threshold = value if isinstance(value, str) else f"{value:.3f}"
    settings = {
        "dataset.path": PATH.value,
        "dataset.canvas": canvas,
        "model.sprite_size": proposed.sprite_size,
        "model.max_objects": proposed.max_objects,
        **({"dataset.threshold": THRESHOLD.value} if THRESHOLD.value != "otsu" else {}),
        **_settings_of_flags(bool(whole.skipped)),
    }
    print(
        f"{len(crops):,} images of {smallest} to {largest} pixels; threshold {threshold}, "
        f"{found.foreground:.1%} of the pixels are foreground. {len(found.count)} of the images "
        f"show {len(found.side):,} connected components; the longer side of a component is "
        f"{np.median(found.side):.0f} pixels (median), {found.side.max()} at most\n"
        f"written to {output} and {histogram}\n"
        f"to train:\n  {_command('cpu', settings)}"
    )
    if 2 * proposed.sprite_size > canvas:
        print(
            f"components of up to {found.side.max()} pixels are probably not objects: if parts of "
            f"the background are above the threshold (see {output}), try --threshold=0.5"
        )
    _print_forecast("cpu", settings)


def _settings_of_flags(skipped: bool) -> dict:
    """The settings of flags that differ from a config's defaults."""
    return {
        **({"dataset.invert": True} if INVERT.value else {}),
        **({"dataset.member": MEMBER.value} if MEMBER.value else {}),
        **({"dataset.data_dir": data_flags.DATA_DIR.value} if data_flags.DATA_DIR.value else {}),
        **({"dataset.unreadable": "skip"} if skipped else {}),
        **({"model.channels": CHANNELS.value} if CHANNELS.value != 1 else {}),
    }


def _command(recipe: str, settings: dict) -> str:
    fields = [f"--config.{name}={value}" for name, value in settings.items()]
    return shlex.join(["lavae", "train", f"--config=images:{recipe}", *fields])


def _print_forecast(recipe: str, settings: dict) -> None:
    """Prints how long the proposed command will take, or why it would not start."""
    if not FORECAST.value:
        return
    print("timing a few steps of training ...", flush=True)
    config = recipe_of_images.get_config(recipe)
    config.update_from_flattened_dict(settings)
    try:
        run_data.settle(config)
        print(loop.describe_forecast(config, lambda: run_data.open_training_data(config)))
    except UserError as error:
        print(f"this command would fail: {error}")


# --- grey images -----------------------------------------------------------------


def _is_grey(opened: images.Images) -> bool:
    if LEVELS.value != "auto" or THRESHOLD.present or not len(opened):
        return LEVELS.value == "grey"
    try:
        return custom.suits_grey(opened, Preprocessing(CHANNELS.value, INVERT.value))
    except ImageError:
        return False  # an unreadable file, which is reported later


def _show_grey(opened: images.Images, output: pathlib.Path) -> None:
    raw = Preprocessing(CHANNELS.value, INVERT.value)
    found = custom.components(opened, raw, skip_unreadable=True)
    usual = custom.usual_diameter(found)
    preprocessing = Preprocessing(CHANNELS.value, INVERT.value, levels="grey", diameter=usual)
    panels, zooms, skipped = [], [], []
    for i in _shown(len(opened)):
        try:
            grey = preprocessing.grey(opened[i], opened.names[i])
        except ImageError as error:
            skipped.append(str(error))
            continue
        seen = preprocessing.seen(grey)
        zooms.append(seen.shape[0] / grey.shape[0])
        panels += [
            figures.Panel(grey, f"{opened.names[i]}"),
            figures.Panel(seen, f"zoom {zooms[-1]:.2f}"),
        ]
    for reason in skipped:
        print(f"not read: {reason}")
    caption = f"{PATH.value}: each image, and next to it what the model sees."
    grid = figures.panels(figures.in_rows(panels, 8), caption=caption, panel_inches=1.2)
    figures.save(grid, output)
    objects = np.concatenate([one.objects for one in found])
    clumps = sum(int((~one.is_solid).sum()) for one in found)
    histogram = output.with_name(f"{output.stem}_sizes{output.suffix}")
    title = "diameter of a solid connected component"
    figures.save(figures.sizes(objects, usual, "diameter", title), histogram)
    low, high = np.quantile(objects, [0.05, 0.95])
    has_skipped = bool(skipped) or len(found) < min(len(opened), custom.SIZED_IMAGES)
    settings = {"dataset.path": PATH.value, **_settings_of_flags(has_skipped)}
    print(
        f"{len(opened):,} grey images. {len(found)} of them were examined: {len(objects):,} "
        f"connected components are probably single objects, and {clumps:,} are clumps or something "
        f"else. The usual diameter of an object is {usual:g} pixels (5th to 95th percentile: "
        f"{low:.0f} to {high:.0f}). The model sees images zoomed so that the usual diameter is "
        f"{normalisation.STANDARD:g} pixels; those in the picture are zoomed by factors of "
        f"{min(zooms):.2f} to {max(zooms):.2f}\n"
        f"written to {output} and {histogram}\n"
        f"to train:\n  {_command('grey', settings)}"
    )
    # The diameter is known already; measuring it again takes a while.
    _print_forecast("grey", {**settings, "dataset.diameter": f"{usual:g}"})


def _shown(length: int) -> range:
    index = range(START.value, min(START.value + COUNT.value, length))
    if not index:
        raise app.UsageError(
            f"--start={START.value} must be less than {length:,}, the number of images"
        )
    return index


def main():
    """Draws scenes or custom images.

    Returns:
        None, which stands for success.
    """
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
    """Runs the program."""
    program.run(main)
