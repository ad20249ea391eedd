"""Writes a labelled grid of scenes, to be looked at.

    python launch/show_data.py --dataset=multi_dsprites --split=test_7 --output=grid.png

The title of each scene lists its objects: digits for multi_mnist; size, shape
and colour for multi_dsprites. Ground truth centres are marked.
"""

import _program
import data_flags
from absl import app, flags

import datasets
from datasets.multi_dsprites import shapes
from lavae_jax import figures, gallery, input_pipeline

flags.adopt_module_key_flags(data_flags)
SPLIT = flags.DEFINE_string("split", "test", "train, test or test_7.")
OUTPUT = flags.DEFINE_string("output", "grid.png", "The picture to write.")
COUNT = flags.DEFINE_integer("count", 24, "Number of scenes.", lower_bound=1)
START = flags.DEFINE_integer("start", 0, "First scene.", lower_bound=0)

COLOR_NAMES = ("blue", "green", "cyan", "red", "magenta", "yellow", "white")  # of shapes.COLORS
DIGITS = "Titles: the number of objects and their digits. Crosses: locations."
FACTORS = (
    f"Titles: the number of objects, then size (0 to 5), shape ({', '.join(shapes.SHAPES)}) and "
    f"colour ({', '.join(COLOR_NAMES)}) of each. Crosses: locations."
)


def describe(example: dict) -> str:
    """The objects of a scene in a few letters."""
    n = example["count"]
    if "labels" in example:
        objects = [str(label) for label in example["labels"][:n]]
    else:
        factors = zip(*(example[k][:n] for k in ("scale", "shape", "color")), strict=True)
        objects = [f"{k}{shapes.SHAPES[s][0]}{COLOR_NAMES[c][0].upper()}" for k, s, c in factors]
    lines = [" ".join(objects[i : i + 4]) for i in range(0, n, 4)]
    return f"{n}: " + "\n".join(lines)


def main():
    output = _program.output_file(OUTPUT.value)
    builder = data_flags.make_builder()
    _program.check_splits(builder, [SPLIT.value])
    datasets.prepare(builder)
    source = input_pipeline.open_split(builder, SPLIT.value, tuple(builder.info.features))
    index = range(START.value, min(START.value + COUNT.value, len(source)))
    if not index:
        raise app.UsageError(f"--start={START.value}: the split has {len(source):,} scenes")
    batch = source.read(index)
    examples = [{k: v[i] for k, v in batch.items()} for i in range(len(index))]
    figure = gallery.scenes(
        batch["image"],
        [describe(example) for example in examples],
        [example["locations"][: example["count"]] for example in examples],
        DIGITS if "labels" in batch else FACTORS,
    )
    figures.save(figure, output)
    print(f"{builder.info.full_name} {SPLIT.value} {index.start} to {index.stop - 1}: {output}")


if __name__ == "__main__":
    _program.run(main)
