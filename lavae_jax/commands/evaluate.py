"""Measures a trained model on the test splits.

    lavae evaluate --checkpoint=runs/mnist1k-cpu
    lavae evaluate --checkpoint=runs/mnist1k-cpu --split=test --num_images=1000
    lavae evaluate --checkpoint=mnist1k --support=pixels    # shipped weights
    lavae evaluate --checkpoint=dsprites --dataset=multi_dsprites/between

Prints the importance-weighted bound on -log p(x) beside the entropy of the data, count
accuracy, how far inferred centres are from the true ones, foreground ARI, and how far
objects are disentangled; writes all of it, with the confusion matrix of counts, to
--output.

Several processes share the images, and the numbers stay the same. They are started as
those of launch/train.py are; process 0 prints and writes.
"""

import json
import warnings

import jax
from absl import app, flags

import lavae_jax
from lavae_jax import evaluation, input_pipeline
from lavae_jax.commands import (
    model_flags,
    process_flags,
    program,
    scene_data,
)

SPLIT = flags.DEFINE_list("split", None, "Splits, separated by commas [all but train].")
DATASET = flags.DEFINE_string(
    "dataset",
    None,
    f"Scenes of another kind than those of training [the same]: {scene_data.names()}.",
)
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 100, "Importance samples.", lower_bound=1)
NUM_IMAGES = flags.DEFINE_integer("num_images", None, "The first so many [all].", lower_bound=1)
SUPPORT = flags.DEFINE_enum(
    "support", None, ["pixels", "peaks"], "Where q(z_loc) samples [as in training]."
)
OUTPUT = flags.DEFINE_string("output", "results.json", "The file to write.")
flags.adopt_module_key_flags(model_flags)
flags.adopt_module_key_flags(process_flags)


def entropy(builder, split: str) -> float | None:
    try:
        return builder.entropy(split)
    except scene_data.load().digits.SourceError:
        print("the digits are not at hand, so the entropy of the data is not computed")
        return None


def main():
    process_flags.connect()
    reports = jax.process_index() == 0
    output = program.output_file(OUTPUT.value) if reports else None
    if not reports:
        warnings.simplefilter("ignore")
    model = model_flags.load()
    if SUPPORT.value:
        if not isinstance(model, lavae_jax.Model):
            raise app.UsageError("--support is for LAVAE")
        model = model.with_settings(support=SUPPORT.value)
    datasets = scene_data.load()
    builder = datasets.make_builder(**model_flags.builder_options(model, DATASET.value))
    splits = SPLIT.value or [name for name in builder.split_counts if name != "train"]
    scene_data.check_splits(builder, splits)
    datasets.prepare(builder)
    config = model.config
    results = {
        "checkpoint": model_flags.CHECKPOINT.value,
        "name": config.name,
        "recipe": config.recipe,
        "kind": config.kind,
        "dataset": DATASET.value or config.dataset.name,
        "overrides": "" if DATASET.value else config.dataset.overrides,
        "seed": config.seed,
        "num_samples": NUM_SAMPLES.value,
        "support": getattr(model.settings, "support", None),
        "prior": str(model.settings.prior) if isinstance(model, lavae_jax.Model) else None,
        "splits": {},
    }
    for name in splits:
        source = input_pipeline.open_split(builder, name, ("image", "count", "mask"))
        source = input_pipeline.Part(source, range(len(source))[: NUM_IMAGES.value])
        known = entropy(builder, name) if reports else None
        scores = evaluation.evaluate(model, source, NUM_SAMPLES.value, known)
        results["splits"][name] = scores
        if reports:
            print(evaluation.describe(name, scores), flush=True)
            output.write_text(json.dumps(results, indent=1) + "\n")  # a stop loses little
    if reports:
        print(f"written to {output}")


def run():
    program.run(main)
