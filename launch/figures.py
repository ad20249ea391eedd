"""Draws the paper's figures for a trained model, its training curves and a confusion matrix.

    python launch/figures.py --checkpoint=runs/mnist1k-cpu --output=figures/
    python launch/figures.py --checkpoint=mnist1k --beside=mnist1k_mixture,baseline_mnist1k
    python launch/figures.py --checkpoint=... --figure=swap,location_traversal --seed=3
    python launch/figures.py --checkpoint=... --dataset=multi_mnist/1k_anywhere

Each figure is written to NAME.png and NAME.pdf.
"""

import _checkout

_checkout.prepare()

from absl import app, flags

import datasets
import lavae_jax
from lavae_jax import figures, input_pipeline, model_files
from lavae_jax.commands import model_flags, other_data_flags, program
from lavae_jax.gallery import FIGURES, Gallery
from lavae_jax.training import files

flags.adopt_module_key_flags(model_flags)
flags.adopt_module_key_flags(other_data_flags)
BESIDE = flags.DEFINE_list(
    "beside", [], "Other models of the same data, whose samples are drawn next to the model's."
)
OUTPUT = flags.DEFINE_string("output", "figures", "The folder to write to.")
FIGURE = flags.DEFINE_list("figure", list(FIGURES), f"Which to draw, of {', '.join(FIGURES)}.")
flags.register_validator(
    "figure",
    lambda names: set(names) <= set(FIGURES),
    f"expected one of {', '.join(FIGURES)}",
)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the samples and of the choice of objects.")
ROWS = flags.DEFINE_integer("rows", 6, "Scenes in a figure.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 8, "Panels of a traversal.", lower_bound=2)
INCHES = flags.DEFINE_float("inches", 1.0, "Width of a panel.", lower_bound=0.1)


def load_beside(model: lavae_jax.Model, name: str) -> lavae_jax.Model | lavae_jax.Baseline:
    """Loads another model, whose samples are drawn next to those of the first one.

    Args:
        model: the first model.
        name: the run's folder of the other model, or the name of its weights.

    Returns:
        The other model.

    Raises:
        app.UsageError: if the models were trained on different data.
    """
    other = lavae_jax.load(name)
    ours, theirs = (m.config.dataset.name for m in (model, other))
    if ours != theirs:
        raise app.UsageError(f"--beside={name} was trained on {theirs}, --checkpoint on {ours}")
    return other


def main():
    """Draws the figures that the flags name."""
    folder = program.output_folder(OUTPUT.value)
    model = model_flags.load_lavae()
    beside = [load_beside(model, name) for name in BESIDE.value]
    others = other_data_flags.DATASET.value, other_data_flags.SET.value
    builder = datasets.make_builder(**model_flags.builder_options(model, *others))
    datasets.prepare(builder)
    features = ("image", "count")
    metrics = model.folder / model_files.METRICS
    gallery = Gallery(
        model,
        beside,
        test=input_pipeline.open_split(builder, "test", features),
        crowd=input_pipeline.open_split(builder, f"test_{builder.builder_config.crowd}", features),
        records=files.read_metrics(metrics) if metrics.exists() else (),
        seed=SEED.value,
        rows=ROWS.value,
        steps=STEPS.value,
        panel_inches=INCHES.value,
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(FIGURE.value):
        figure = gallery.draw(name)
        if figure is None:
            print(f"{name} is left out: {metrics} does not exist or lacks its metrics")
            continue
        figures.save(figure, folder / f"{name}.pdf", folder / f"{name}.png")
        print(folder / f"{name}.png", flush=True)


if __name__ == "__main__":
    program.run(main)
