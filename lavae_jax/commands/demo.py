"""Decomposes new scenes with a trained model, edits them, and draws the result.

    lavae demo                              # shipped weights, demo.png
    lavae demo --checkpoint=dsprites --count=7 --seed=3

In a checkout, scenes of the model's data set are drawn in memory. The installed package has no data
sets, so the scenes are samples of the model.
"""

import numpy as np
from absl import app, flags

import lavae_jax
from lavae_jax import figures, gallery, likelihoods
from lavae_jax.commands import model_flags, program, scene_data

flags.adopt_module_key_flags(model_flags)
flags.set_default(model_flags.CHECKPOINT, "mnist1k")
SCENES = flags.DEFINE_integer("scenes", 5, "Number of scenes.", lower_bound=1)
COUNT = flags.DEFINE_integer("count", 3, "Number of objects in each scene.", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the scenes.")
OUTPUT = flags.DEFINE_string("output", "demo.png", "The picture to write.")


def make_builder(model: lavae_jax.Model):
    """Makes a builder that can draw scenes for a model.

    Args:
        model: a trained LAVAE.

    Returns:
        The builder of its data set, or of a similar one if the digits are missing.
    """
    datasets = scene_data.load()
    options = model_flags.builder_options(model)
    builder = datasets.demo_builder(**options)
    wanted, drawn = datasets.make_builder(**options).info.full_name, builder.info.full_name
    if drawn != wanted:
        print(f"the digits of {wanted} are not available; these are scenes of {drawn}")
    config = builder.builder_config
    most = datasets.scenes.capacity(config.patch, config.canvas)
    if COUNT.value > most:
        raise app.UsageError(f"--count={COUNT.value}: a scene has room for at most {most} objects")
    return builder


def draw_scenes(model: lavae_jax.Model) -> np.ndarray:
    """Draws scenes with COUNT objects each, or samples them from the model.

    Args:
        model: a trained LAVAE.

    Returns:
        Images [B, H, W, C], bool.
    """
    if scene_data.find() and model.config.dataset.name != "images":
        drawn = make_builder(model).draw(SCENES.value, SEED.value, (COUNT.value, COUNT.value))
        return drawn.image > 0
    most = model.settings.max_objects
    if COUNT.value > most:
        raise app.UsageError(f"--count={COUNT.value}: a sample of the model has at most {most}")
    print("the data set of the model is not available here; these are samples of the model")
    candidates = model.sample(SEED.value, CANDIDATES, count=[COUNT.value])
    apart = _least_distance(np.asarray(candidates.location)[:, : COUNT.value])
    chosen = np.argsort(-apart, kind="stable")[: SCENES.value]
    means = np.asarray(model.render(candidates[chosen]))
    return likelihoods.of(model.settings).is_foreground(means)


CANDIDATES = 512  # samples; those whose objects are farthest apart are shown


def _least_distance(location: np.ndarray) -> np.ndarray:
    """[B]: the smallest distance (maximum norm) between the locations [B, n, 2] of a scene."""
    distance = np.abs(location[:, :, None] - location[:, None]).max(-1)
    distance += np.eye(location.shape[1], dtype=int) * 1_000_000
    return distance.min((1, 2))


def main():
    """Decomposes and edits scenes, and writes the picture."""
    output = program.output_file(OUTPUT.value, program.PICTURES)
    model = model_flags.load_lavae()
    program.check_is_binary(str(model_flags.CHECKPOINT.value), model)
    images = draw_scenes(model)
    scene = model.infer(images)
    for i in range(len(images)):
        count = int(scene.count[i])
        locations = [tuple(map(int, location)) for location in scene.location[i][:count]]
        print(f"scene {i}: {count} objects (true: {COUNT.value}) at {locations}")
    figures.save(gallery.edits(model, images.astype(np.float32), scene), output)
    print(f"written to {output}")


def run():
    """Runs the program."""
    program.run(main)
