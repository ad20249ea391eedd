"""Takes fresh scenes apart with a trained model, edits them, and draws the result.

    python launch/demo.py                              # shipped weights, demo.png
    python launch/demo.py --checkpoint=dsprites --count=7 --seed=3

No data set is built: scenes are drawn in memory.
"""

import _program
import model_flags
from absl import app, flags

import datasets
import lavae_jax
from datasets import scenes
from lavae_jax import figures, gallery

flags.adopt_module_key_flags(model_flags)
flags.set_default(model_flags.CHECKPOINT, "mnist1k")
SCENES = flags.DEFINE_integer("scenes", 5, "How many scenes.", lower_bound=1)
COUNT = flags.DEFINE_integer("count", 3, "Objects in each.", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "Picks the scenes.")
OUTPUT = flags.DEFINE_string("output", "demo.png", "The picture to write.")


def make_builder(model: lavae_jax.Model) -> scenes.SceneBuilder:
    options = model_flags.builder_options(model)
    builder = datasets.demo_builder(**options)
    wanted, there = datasets.make_builder(**options).info.full_name, builder.info.full_name
    if there != wanted:
        print(f"the digits of {wanted} are not at hand; these are scenes of {there}")
    config = builder.builder_config
    most = scenes.capacity(config.patch, config.canvas)
    if COUNT.value > most:
        raise app.UsageError(f"--count={COUNT.value}: there is room for {most} objects in a scene")
    return builder


def main():
    output = _program.output_file(OUTPUT.value)
    model = model_flags.load()
    if not isinstance(model, lavae_jax.Model):
        raise app.UsageError("a baseline knows no objects; give --checkpoint a LAVAE")
    builder = make_builder(model)
    drawn = builder.draw(SCENES.value, SEED.value, (COUNT.value, COUNT.value))
    scene = model.infer(drawn.image)
    for i in range(SCENES.value):
        places = [tuple(map(int, place)) for place in scene.location[i][: int(scene.count[i])]]
        print(f"scene {i}: {int(scene.count[i])} objects (true: {drawn.count[i]}) at {places}")
    figures.save(gallery.edits(model, drawn.image / 255, scene), output)
    print(f"written to {output}")


if __name__ == "__main__":
    _program.run(main)
