"""Takes fresh scenes apart with a trained model, edits them, and draws the result.

    python launch/demo.py                              # shipped weights, demo.png
    python launch/demo.py --checkpoint=dsprites --count=7 --seed=3

No data set is built: scenes are drawn in memory.
"""

import _path  # noqa: F401
import model_flags
import numpy as np
from absl import app, flags, logging

import lavae_jax
from datasets.multi_mnist import digits
from lavae_jax import figures

flags.set_default(model_flags.CHECKPOINT, "mnist1k")
SCENES = flags.DEFINE_integer("scenes", 5, "How many scenes.", lower_bound=1)
COUNT = flags.DEFINE_integer("count", 3, "Objects in each.", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "Picks the scenes.")
OUTPUT = flags.DEFINE_string("output", "demo.png", "The picture to write.")
EDITS = {
    "0 and 1 swapped": lambda scene: scene.swap(0, 1),
    "0 in the middle": lambda scene: scene.move(0, [side // 2 for side in scene.canvas]),
    "0 removed": lambda scene: scene.remove(0),
    "0 looks like 1": lambda scene: scene.with_appearance(0, scene.appearance[:, 1]),
}


def main(argv):
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    model = model_flags.load(model_flags.CHECKPOINT.value)
    if not isinstance(model, lavae_jax.Model):
        raise app.UsageError("a baseline knows no objects; give --checkpoint a LAVAE")
    builder = model_flags.builder_of(model)
    try:
        drawn = builder.draw(SCENES.value, SEED.value, (COUNT.value, COUNT.value))
    except (ValueError, digits.SourceError) as error:
        raise SystemExit(f"error: {error}") from None

    scene = model.infer(drawn.image)
    for i in range(SCENES.value):
        places = [tuple(map(int, place)) for place in scene.location[i][: int(scene.count[i])]]
        print(f"scene {i}: {int(scene.count[i])} objects (true: {drawn.count[i]}) at {places}")
    columns = {"scene": drawn.image / 255, "inferred": model.render(scene)}
    columns |= {name: model.render(edit(scene)) for name, edit in EDITS.items()}
    rows = list(zip(*(np.asarray(images) for images in columns.values()), strict=True))
    figure = figures.panels(rows, column_titles=list(columns))
    figures.save(figure, OUTPUT.value)
    print(f"written to {OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
