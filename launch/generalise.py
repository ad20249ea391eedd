"""Measures counting and localisation with more objects, and on larger canvases, than in training.

    python launch/generalise.py --checkpoint=mnist1k
    python launch/generalise.py --checkpoint=dsprites --canvas=64,128 --count=0,5,10

Draws new scenes for every canvas and every number of objects up to 70 % of those that fit on it.
Their objects are those of the training data and, for digits, also held-out digits. Writes the count
accuracy and the centre error as a picture, and as JSON next to it.
"""

import itertools
import json

import _checkout

_checkout.prepare()

import numpy as np
from absl import flags

import datasets
import lavae_jax
from datasets import scenes
from lavae_jax import evaluation, figures
from lavae_jax.commands import model_flags, program

flags.adopt_module_key_flags(model_flags)
flags.set_default(model_flags.CHECKPOINT, "mnist1k")
COUNTS = flags.DEFINE_list(
    "count", ["0", "1", "2", "3", "5", "7", "10", "15", "20", "30"], "Numbers of objects."
)
CANVASES = flags.DEFINE_list(
    "canvas", ["64", "96", "128", "192", "256"], "Sides of canvases, in pixels."
)
for name in ("count", "canvas"):
    flags.register_validator(
        name, lambda values: all(map(str.isdecimal, values)), "expected whole numbers"
    )
SCENES = flags.DEFINE_integer("scenes", 200, "Scenes of each kind.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the scenes.")
OUTPUT = flags.DEFINE_string("output", "generalise.png", "The picture to write.")

FULL = 0.7  # the largest number of objects, as a share of those that fit; more are hard to place


def kinds(model: lavae_jax.Model) -> dict[str, str]:
    """Lists the data sets to measure.

    Args:
        model: the trained model.

    Returns:
        The names of the data sets by their labels in the picture.
    """
    name = model.config.dataset.name
    unseen = f"{name}_unseen"
    return {"seen": name} | ({"unseen": unseen} if unseen in datasets.names() else {})


def measure(model: lavae_jax.Model, dataset: str, canvas: int, count: int) -> dict | None:
    """Evaluates counting and localisation on new scenes of one kind.

    Args:
        model: the trained model.
        dataset: the name of the data set.
        canvas: height and width of a scene.
        count: the number of objects in each scene.

    Returns:
        The scores by name; None if the canvas is too small for the objects (see `FULL`).
    """
    options = model_flags.builder_options(model, dataset)
    builder = datasets.make_builder(**{**options, "canvas": canvas})
    most = scenes.capacity(builder.builder_config.patch, canvas)
    if count > max(FULL * most, min(most, 3)):
        return None
    drawn = builder.draw(SCENES.value, SEED.value, (count, count))
    scene = model.infer(drawn.image, max_objects=max(count + 5, model.settings.max_objects))
    objects = evaluation.object_scores(scene, np.asarray(model.sprites(scene)), drawn.mask)
    scores = evaluation.count_scores(np.asarray(scene.count), drawn.count)
    del scores["count_confusion"]
    return scores | evaluation.centre_scores(objects)


def main():
    """Measures all scenes, and writes the results and the picture."""
    output = program.output_file(OUTPUT.value, program.PICTURES)
    model = model_flags.load_lavae()
    counts, canvases = (sorted(map(int, values)) for values in (COUNTS.value, CANVASES.value))
    results = []
    for (kind, dataset), canvas in itertools.product(kinds(model).items(), canvases):
        for count in counts:
            scores = measure(model, dataset, canvas, count)
            if scores is None:
                continue
            results.append({"kind": kind, "canvas": canvas, "count": count, **scores})
            off = scores.get("centre_distance_95")
            print(
                f"{count} {kind} objects on {canvas}x{canvas} pixels: "
                f"count accuracy {scores['count_accuracy']:.1%}"
                + ("" if off is None else f", 95th-percentile centre error {off:.2f} pixels"),
                flush=True,
            )
    about = {"checkpoint": model_flags.CHECKPOINT.value, "scenes": SCENES.value, "seed": SEED.value}
    written = output.with_suffix(".json")
    written.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    figures.save(figures.generalisation(results), output)
    print(f"written to {output} and {written}")


if __name__ == "__main__":
    program.run(main)
