"""Measures a trained model on the test splits.

    python launch/evaluate.py --checkpoint=runs/mnist1k-cpu
    python launch/evaluate.py --checkpoint=runs/mnist1k-cpu --split=test --num_images=1000
    python launch/evaluate.py --checkpoint=mnist1k --support=pixels    # shipped weights

Prints the importance-weighted bound on -log p(x) beside the entropy of the data, count
accuracy, how far inferred centres are from the true ones, foreground ARI, and how far
objects are disentangled; writes all of it, with the confusion matrix of counts, to
--output.
"""

import dataclasses
import json
import pathlib
import time

import _path  # noqa: F401
import model_flags
import numpy as np
from absl import app, flags

import lavae_jax
from datasets.multi_mnist import digits
from lavae_jax import evaluation, input_pipeline

SPLIT = flags.DEFINE_list("split", ["test", "test_7"], "Splits, separated by commas.")
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 100, "Importance samples.", lower_bound=1)
NUM_IMAGES = flags.DEFINE_integer("num_images", None, "The first so many [all].", lower_bound=1)
SUPPORT = flags.DEFINE_enum(
    "support", None, ["pixels", "peaks"], "Where q(z_loc) samples [as in training]."
)
OUTPUT = flags.DEFINE_string("output", "results.json", "The file to write.")


def evaluate_split(model, source, bank, counts: range, canvas: int) -> dict:
    is_lavae = isinstance(model, lavae_jax.Model)
    size = min(NUM_IMAGES.value or len(source), len(source))
    batch = source.read(range(size))
    images = batch["image"]
    bound = model.bound(images, NUM_SAMPLES.value, progress="-log p(x)")
    neg = -bound["log_likelihood"]
    floor = bank and evaluation.entropy_floor(bank.sprites, counts, canvas)
    scores = {
        "images": size,
        "neg_log_likelihood": float(neg.mean()),
        "standard_error": float(neg.std() / np.sqrt(size)),
        "median": float(np.median(neg)),
        "terms": {name: float(value.mean()) for name, value in bound["terms"].items()},
        "entropy_floor": floor,
        "gap_to_floor": None if floor is None else float(neg.mean() - floor),
    }
    if is_lavae:
        model.infer(images)  # compiles
        start = time.perf_counter()
        scene = model.infer(images)
        scores["images_per_second"] = size / (time.perf_counter() - start)
        scores |= evaluation.count_scores(np.asarray(scene.count), batch["count"])
        objects = evaluation.object_scores(scene, np.asarray(model.sprites(scene)), batch["mask"])
        distance, ari = objects["distance"], objects["foreground_ari"]
        if len(distance):
            scores["centre_distance_median"] = float(np.median(distance))
            scores["centre_distance_95"] = float(np.percentile(distance, 95))
            scores["centres_within_2_pixels"] = float((distance <= 2).mean())
        if len(ari):
            scores["foreground_ari"] = float(ari.mean())
        scores["disentanglement"] = evaluation.disentanglement(model, images[:500])
    return scores


def describe(name: str, scores: dict) -> str:
    """A split's figures, for people."""
    lines = [
        f"{name}: {scores['images']:,} images",
        f"  -log p(x) <= {scores['neg_log_likelihood']:.2f} ± {scores['standard_error']:.2f} "
        f"(median {scores['median']:.2f}); "
        + ", ".join(f"{k} {v:.2f}" for k, v in scores["terms"].items()),
    ]
    if scores["entropy_floor"] is not None:
        lines.append(
            f"  entropy of the data {scores['entropy_floor']:.2f}, gap {scores['gap_to_floor']:.2f}"
        )
    if "count_accuracy" in scores:
        lines.append(
            f"  count {scores['count_accuracy']:.2%} right, {scores['overcounted']:.2%} over, "
            f"{scores['undercounted']:.2%} under; {scores['images_per_second']:.0f} images/s"
        )
    if "centre_distance_median" in scores:
        lines.append(
            f"  centres off by {scores['centre_distance_median']:.2f} pixels (median), "
            f"{scores['centre_distance_95']:.2f} (95 %); "
            f"{scores['centres_within_2_pixels']:.2%} within 2"
        )
    if "foreground_ari" in scores:
        lines.append(f"  foreground ARI {scores['foreground_ari']:.4f}")
    for edit in ("move", "appearance"):
        if edit in scores.get("disentanglement", {}):
            change = scores["disentanglement"][edit]
            others = f"{change['objects']} others {change['lost']:.1%} lost"
            text = f"  {edit} of one object: of the {others}"
            if change["location_change_pixels"] is not None:
                text += (
                    f", moved by {change['location_change_pixels']:.3f} pixels, appearance "
                    f"changed by {change['appearance_change_in_spreads']:.3f} spreads"
                )
            lines.append(text)
    return "\n".join(lines)


def main(argv):
    model, builder = model_flags.open_model(argv)
    if SUPPORT.value:
        if not isinstance(model, lavae_jax.Model):
            raise app.UsageError("--support is for LAVAE")
        model.config = dataclasses.replace(model.config, support=SUPPORT.value)
    unknown = [name for name in SPLIT.value if name not in builder.info.splits]
    if unknown:
        splits = ", ".join(builder.info.splits)
        raise app.UsageError(f"--split={unknown[0]}: there are {splits}")
    config = builder.builder_config
    try:
        bank = builder.make_bank()
    except digits.SourceError:
        print("the digits are not at hand, so the entropy of the data is not computed")
        bank = None
    results = {
        "checkpoint": model_flags.CHECKPOINT.value,
        "name": model.run.name,
        "recipe": model.run.recipe,
        "kind": model.run.kind,
        "dataset": model.run.dataset.name,
        "overrides": model.run.dataset.overrides,
        "seed": model.run.seed,
        "num_samples": NUM_SAMPLES.value,
        "support": getattr(model.config, "support", None),
        "splits": {},
    }
    for name in SPLIT.value:
        source = input_pipeline.open_split(builder, name, ("image", "count", "mask"))
        crowd = name == f"test_{config.crowd}"
        low, high = (config.crowd, config.crowd) if crowd else (config.min_count, config.max_count)
        scores = evaluate_split(model, source, bank, range(low, high + 1), config.canvas)
        results["splits"][name] = scores
        print(describe(name, scores), flush=True)
    pathlib.Path(OUTPUT.value).write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
