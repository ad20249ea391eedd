"""Writes a labelled grid of scenes, to be looked at.

    python launch/show_data.py --dataset=multi_dsprites --split=test_7 --output=grid.png

The title of each scene lists its objects: digits for multi_mnist; scale, shape
and colour for multi_dsprites. Ground truth centres are marked.
"""

import _path  # noqa: F401
import data_flags
from absl import app, flags

from datasets.multi_dsprites import shapes
from lavae_jax import figures, input_pipeline

SPLIT = flags.DEFINE_string("split", "test", "train, test or test_7.")
OUTPUT = flags.DEFINE_string("output", "grid.png", "The picture to write.")
COUNT = flags.DEFINE_integer("count", 24, "Number of scenes.", lower_bound=1)
START = flags.DEFINE_integer("start", 0, "First scene.", lower_bound=0)

COLUMNS = 8
COLOR_NAMES = "BGCRMYW"  # in the order of shapes.COLORS


def describe(example: dict) -> str:
    """The objects of a scene in a few letters."""
    n = example["count"]
    if "labels" in example:
        objects = [str(label) for label in example["labels"][:n]]
    else:
        factors = zip(*(example[k][:n] for k in ("scale", "shape", "color")), strict=True)
        objects = [f"{k}{shapes.SHAPES[s][0]}{COLOR_NAMES[c]}" for k, s, c in factors]
    lines = [" ".join(objects[i : i + 4]) for i in range(0, n, 4)]
    return f"{n}: " + "\n".join(lines)


def main(argv):
    data_flags.refuse_arguments(argv)
    builder = data_flags.make_builder()
    data_flags.prepare(builder)
    if SPLIT.value not in builder.info.splits:
        raise app.UsageError(f"--split={SPLIT.value}: there are {', '.join(builder.info.splits)}")
    source = input_pipeline.open_split(builder, SPLIT.value, tuple(builder.info.features))
    index = range(START.value, min(START.value + COUNT.value, len(source)))
    if not index:
        raise app.UsageError(f"--start={START.value}: the split has {len(source):,} scenes")
    batch = source.read(index)
    examples = [{k: v[i] for k, v in batch.items()} for i in range(len(index))]
    titles = figures.in_rows([describe(e) for e in examples], COLUMNS)
    rows = figures.in_rows(batch["image"], COLUMNS)
    figure = figures.panels(rows, titles=titles, panel_inches=1.2)
    for axis, example in zip(figure.axes, examples, strict=False):
        centres = example["locations"][: example["count"]]
        axis.plot(centres[:, 1], centres[:, 0], "+", color="tab:orange", markersize=4)
    figures.save(figure, OUTPUT.value)
    print(
        f"{builder.info.full_name} {SPLIT.value} {index.start} to {index.stop - 1}: {OUTPUT.value}"
    )


if __name__ == "__main__":
    app.run(main)
