"""Measures a trained model on the test splits.

    python launch/evaluate.py --checkpoint=runs/mnist1k-cpu
    python launch/evaluate.py --checkpoint=runs/mnist1k-cpu --split=test --num_images=1000
    python launch/evaluate.py --checkpoint=mnist1k --support=pixels    # shipped weights

Prints the importance-weighted bound on -log p(x) beside the entropy of the data, count
accuracy, how far inferred centres are from the true ones, foreground ARI, and how far
objects are disentangled; writes all of it, with the confusion matrix of counts, to
--output.
"""

import json

import _program
import model_flags
from absl import app, flags

import datasets
import lavae_jax
from datasets.multi_mnist.digits import SourceError
from lavae_jax import evaluation, input_pipeline

SPLIT = flags.DEFINE_list("split", ["test", "test_7"], "Splits, separated by commas.")
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 100, "Importance samples.", lower_bound=1)
NUM_IMAGES = flags.DEFINE_integer("num_images", None, "The first so many [all].", lower_bound=1)
SUPPORT = flags.DEFINE_enum(
    "support", None, ["pixels", "peaks"], "Where q(z_loc) samples [as in training]."
)
OUTPUT = flags.DEFINE_string("output", "results.json", "The file to write.")
flags.adopt_module_key_flags(model_flags)


def entropy(builder: datasets.SceneBuilder, split: str) -> float | None:
    try:
        return builder.entropy(split)
    except SourceError:
        print("the digits are not at hand, so the entropy of the data is not computed")
        return None


def main():
    output = _program.output_file(OUTPUT.value)
    model = model_flags.load()
    if SUPPORT.value:
        if not isinstance(model, lavae_jax.Model):
            raise app.UsageError("--support is for LAVAE")
        model = model.with_settings(support=SUPPORT.value)
    builder = datasets.make_builder(**model_flags.builder_options(model))
    _program.check_splits(builder, SPLIT.value)
    datasets.prepare(builder)
    config = model.config
    results = {
        "checkpoint": model_flags.CHECKPOINT.value,
        "name": config.name,
        "recipe": config.recipe,
        "kind": config.kind,
        "dataset": config.dataset.name,
        "overrides": config.dataset.overrides,
        "seed": config.seed,
        "num_samples": NUM_SAMPLES.value,
        "support": getattr(model.settings, "support", None),
        "splits": {},
    }
    for name in SPLIT.value:
        source = input_pipeline.open_split(builder, name, ("image", "count", "mask"))
        batch = source.read(range(min(NUM_IMAGES.value or len(source), len(source))))
        scores = evaluation.evaluate(model, batch, NUM_SAMPLES.value, entropy(builder, name))
        print(evaluation.describe(name, scores), flush=True)
        results["splits"][name] = scores
        output.write_text(json.dumps(results, indent=1) + "\n")  # so that a stop loses little
    print(f"written to {output}")


if __name__ == "__main__":
    _program.run(main)
