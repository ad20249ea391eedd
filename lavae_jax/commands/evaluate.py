"""Evaluates a trained model, or a classical method, on the test splits.

    lavae evaluate --checkpoint=runs/mnist1k-cpu
    lavae evaluate --checkpoint=runs/mnist1k-cpu --split=test --num_images=1000
    lavae evaluate --checkpoint=mnist1k --support=pixels    # shipped weights
    lavae evaluate --checkpoint=dsprites --dataset=multi_dsprites/between
    lavae evaluate --checkpoint=mnist1k --set=apart=8 --calibration
    lavae evaluate --checkpoint=watershed --dataset=multi_mnist/1k    # or connected-components

Prints the importance-weighted bound on -log p(x) and the data entropy, count accuracy, distances of
inferred centres from the true ones, recall and precision of locations, the calibration of objects'
probabilities, foreground ARI, and the disentanglement of objects. Writes all of these, with the
confusion matrix of counts, to --output. Classical methods have neither a likelihood nor
probabilities.

Several processes can share the images, with the same results. They are started like those of
launch/train.py; process 0 prints and writes.
"""

import json
import warnings
from typing import TYPE_CHECKING, Any

import jax
from absl import app, flags

import lavae_jax
from lavae_jax import classical, evaluation, figures, input_pipeline
from lavae_jax.commands import (
    model_flags,
    other_data_flags,
    process_flags,
    program,
    scene_data,
)

if TYPE_CHECKING:
    import datasets

DATASET, SET = other_data_flags.DATASET, other_data_flags.SET
SPLIT = flags.DEFINE_list("split", None, "Splits, separated by commas [all but train].")
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 100, "Importance samples.", lower_bound=1)
NUM_IMAGES = flags.DEFINE_integer(
    "num_images", None, "Evaluate only the first N images of each split [all].", lower_bound=1
)
SUPPORT = flags.DEFINE_enum(
    "support", None, ["pixels", "peaks"], "Where q(z_loc) samples [as in training]."
)
OUTPUT = flags.DEFINE_string("output", "results.json", "The file to write.")
CALIBRATION = flags.DEFINE_bool(
    "calibration", False, "Draw the calibration of objects' probabilities, next to --output."
)
flags.adopt_module_key_flags(model_flags)
flags.adopt_module_key_flags(other_data_flags)
flags.adopt_module_key_flags(process_flags)


def entropy(builder, split: str) -> float | None:
    """Computes the data entropy, or prints why it cannot.

    Args:
        builder: the builder of the data set.
        split: the name of the split.

    Returns:
        The entropy in nats; None if it is not known.
    """
    try:
        return builder.entropy(split)
    except scene_data.load().digits.SourceError:
        print("the data entropy was not computed, because MNIST's digits are missing")
        return None


def load_model() -> lavae_jax.Model | lavae_jax.Baseline:
    """Loads the model that the flags name.

    Returns:
        The model, with the support that the flags name.

    Raises:
        UsageError: a flag does not apply to this model.
    """
    model = model_flags.load()
    if SUPPORT.value:
        if not isinstance(model, lavae_jax.Model):
            raise app.UsageError("--support applies only to LAVAE")
        model = model.with_settings(support=SUPPORT.value)
    if CALIBRATION.value and not isinstance(model, lavae_jax.Model):
        raise app.UsageError("--calibration applies only to LAVAE")
    return model


def describe_model(model: lavae_jax.Model | lavae_jax.Baseline) -> dict[str, Any]:
    """Describes a model and its evaluation for a file of results.

    Args:
        model: the model.

    Returns:
        All fields of the file but `splits`.
    """
    config = model.config
    is_same = DATASET.value is None and SET.value is None
    return {
        "checkpoint": model_flags.CHECKPOINT.value,
        "name": config.name,
        "recipe": config.recipe,
        "kind": config.kind,
        "dataset": DATASET.value or config.dataset.name,
        "overrides": config.dataset.overrides if is_same else SET.value or "",
        "seed": config.seed,
        "num_samples": NUM_SAMPLES.value,
        "support": model.settings.support if isinstance(model, lavae_jax.Model) else None,
        "prior": str(model.settings.prior) if isinstance(model, lavae_jax.Model) else None,
    }


def describe_method(name: str) -> dict[str, Any]:
    """Describes a classical method for a file of results. Such methods are deterministic.

    Args:
        name: the name of the method.

    Returns:
        The same fields as `describe_model`.
    """
    return {
        "checkpoint": name,
        "name": name,
        "recipe": name,
        "kind": "classical",
        "dataset": DATASET.value,
        "overrides": SET.value or "",
        "seed": 0,
        "num_samples": 0,
        "support": None,
        "prior": None,
    }


def classical_builder() -> "datasets.SceneBuilder":
    """Makes the builder of the data set that a classical method is evaluated on.

    Returns:
        The builder.

    Raises:
        UsageError: --dataset is missing, or a flag does not apply to classical methods.
    """
    if DATASET.value is None:
        raise app.UsageError(f"--checkpoint={model_flags.CHECKPOINT.value} needs a --dataset")
    if SUPPORT.value or CALIBRATION.value:
        raise app.UsageError("--support and --calibration apply only to LAVAE")
    datasets = scene_data.load()
    return datasets.make_builder(
        DATASET.value,
        data_dir=model_flags.DATA_DIR.value,
        mnist_dir=model_flags.MNIST_DIR.value,
        **datasets.parse_overrides(SET.value or ""),
    )


def main():
    """Evaluates a model or a method, and writes the results after each split."""
    process_flags.connect()
    reports = jax.process_index() == 0
    output = program.output_file(OUTPUT.value) if reports else None
    if not reports:
        warnings.simplefilter("ignore")
    name = str(model_flags.CHECKPOINT.value)  # the flag is required
    method = classical.METHODS.get(name)
    if method:
        builder, results = classical_builder(), describe_method(name)
    else:
        model = load_model()
        options = model_flags.builder_options(model, DATASET.value, SET.value)
        builder = scene_data.load().make_builder(**options)
        results = describe_model(model)
    splits = SPLIT.value or [name for name in builder.split_counts if name != "train"]
    scene_data.check_splits(builder, splits)
    scene_data.load().prepare(builder)
    results["splits"] = {}
    for name in splits:
        overlap = [feature for feature in evaluation.OVERLAP if feature in builder.info.features]
        split = input_pipeline.open_split(builder, name, (*evaluation.FEATURES, *overlap))
        source = input_pipeline.Part(split, range(len(split))[: NUM_IMAGES.value])
        if method:
            scores = evaluation.evaluate_classical(method, source)
        else:
            known = entropy(builder, name) if reports else None
            scores = evaluation.evaluate(model, source, NUM_SAMPLES.value, known)
        results["splits"][name] = scores
        if output is not None:
            print(evaluation.describe(name, scores), flush=True)
            # After each split, so that an interruption loses little.
            output.write_text(json.dumps(results, indent=1) + "\n")
    if output is None:
        return
    print(f"written to {output}")
    if CALIBRATION.value:
        picture = output.with_name(f"{output.stem}_calibration.png")
        curves = {name: scores["calibration"] for name, scores in results["splits"].items()}
        figures.save(figures.calibration(curves), picture)
        print(f"written to {picture}")


def run():
    """Runs the program."""
    program.run(main)
