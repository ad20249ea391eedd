"""Draws the paper's figures from a trained model, and two more.

    python launch/figures.py --checkpoint=runs/mnist1k-cpu --output=figures/
    python launch/figures.py --checkpoint=... --baseline=runs/baseline_mnist1k-cpu
    python launch/figures.py --checkpoint=... --figure=swap,location_traversal --seed=3

Each figure is written as PNG and PDF, under a name that says what it is.
"""

import pathlib

import _path  # noqa: F401
import model_flags
import numpy as np
from absl import app, flags

import lavae_jax
from lavae_jax import evaluation, figures, input_pipeline, run_files

FIGURES = (
    "reconstruction",
    "reconstruction_crowd",
    "prior_samples",
    "prior_samples_4_5",
    "swap",
    "swap_crowd",
    "location_traversal",
    "location_traversal_crowd",
    "appearance_traversal",
    "appearance_traversal_crowd",
    "training_curves",
    "count_confusion",
)
BASELINE = flags.DEFINE_string("baseline", None, "The same of a baseline, for its samples.")
OUTPUT = flags.DEFINE_string("output", "figures", "The folder to write to.")
FIGURE = flags.DEFINE_list("figure", list(FIGURES), f"Which to draw, of {', '.join(FIGURES)}.")
flags.register_validator(
    "figure",
    lambda names: set(names) <= set(FIGURES),
    f"there are only {', '.join(FIGURES)}",
)
SEED = flags.DEFINE_integer("seed", 0, "Picks scenes, objects and samples.")
ROWS = flags.DEFINE_integer("rows", 6, "Scenes in a figure.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 8, "Panels of a traversal.", lower_bound=2)
INCHES = flags.DEFINE_float("inches", 1.0, "Width of a panel.", lower_bound=0.1)


class Gallery:
    """A model, scenes to show, and one method for each kind of figure."""

    def __init__(self, model: lavae_jax.Model, baseline: lavae_jax.Baseline | None, builder):
        self.model, self.baseline, self.builder = model, baseline, builder
        self.rng = np.random.default_rng(SEED.value)
        self.size = {"panel_inches": INCHES.value}

    def images(self, crowd: bool, at_least: int = 0) -> np.ndarray:
        """Scenes of the test split, those with enough objects first, in order."""
        config = self.builder.builder_config
        split = f"test_{config.crowd}" if crowd else "test"
        source = input_pipeline.open_split(self.builder, split, ("image", "count"))
        batch = source.read(range(min(len(source), 40 * ROWS.value)))
        order = np.argsort(batch["count"] < at_least, kind="stable")
        return batch["image"][order[: ROWS.value]]

    def reconstruction(self, crowd: bool) -> figures.Figure:
        images = self.images(crowd)
        scene = self.model.infer(images)
        location = np.asarray(scene.location)
        return figures.explanations(
            images,
            np.asarray(self.model.render(scene)),
            np.asarray(scene.count),
            location[..., 0] * scene.canvas[1] + location[..., 1],
            np.asarray(self.model.sprites(scene)),
            **self.size,
        )

    def samples(self, count=None) -> np.ndarray:
        columns = 6
        canvas = (self.builder.builder_config.canvas,) * 2
        scene = self.model.sample(SEED.value, columns * ROWS.value, count, canvas)
        return figures.in_rows(np.asarray(self.model.render(scene)), columns)

    def prior_samples(self) -> figures.Figure:
        rows = self.samples()
        titles = ["LAVAE"]
        if self.baseline:
            number, canvas = len(rows) * len(rows[0]), rows[0][0].shape[:2]
            images = self.baseline.sample(SEED.value, number, canvas)
            theirs = figures.in_rows(np.asarray(images), len(rows[0]))
            gap = np.ones_like(rows[0][0])
            rows = [[*a, gap, *b] for a, b in zip(rows, theirs, strict=True)]
            titles += [""] * len(theirs[0]) + ["baseline"]
        return figures.panels(rows, column_titles=titles, **self.size)

    def prior_samples_4_5(self) -> figures.Figure:
        return figures.panels(self.samples(count=[4, 5]), **self.size)

    def swap(self, crowd: bool) -> figures.Figure:
        scene = self.model.infer(self.images(crowd, at_least=2))
        before, after = (np.asarray(self.model.render(s)) for s in (scene, scene.swap(0, 1)))
        rows = [list(before), list(after)]
        return figures.panels(rows, column_titles=["reconstruction"], **self.size)

    def pick(self, scene) -> np.ndarray:
        """An object of each scene."""
        return self.rng.integers(0, np.maximum(np.asarray(scene.count), 1))

    def traversal(self, scene, chosen, edits) -> figures.Figure:
        """The reconstruction with the chosen object framed, then every edit of it."""
        location = np.asarray(scene.location)[np.arange(len(scene)), chosen]
        first = np.asarray(self.model.render(scene))
        columns = [
            [
                figures.marked(image, where, self.model.config.sprite_size) if n else image
                for image, where, n in zip(first, location, np.asarray(scene.count), strict=True)
            ]
        ]
        columns += [np.asarray(self.model.render(edited)) for edited in edits]
        rows = [list(row) for row in zip(*columns, strict=True)]
        return figures.panels(rows, column_titles=["reconstruction"], **self.size)

    def location_traversal(self, crowd: bool) -> figures.Figure:
        """The chosen object goes around the canvas on an ellipse."""
        scene = self.model.infer(self.images(crowd, at_least=1))
        chosen = self.pick(scene)
        middle = np.array(scene.canvas) / 2
        reach = middle - self.model.config.sprite_size // 2 - 1
        angles = np.linspace(0, 2 * np.pi, STEPS.value, endpoint=False)
        path = middle + reach * np.stack([np.sin(angles), np.cos(angles)], axis=-1)
        return self.traversal(scene, chosen, [scene.move(chosen, p.astype(int)) for p in path])

    def appearance_traversal(self, crowd: bool) -> figures.Figure:
        """One coordinate of the chosen object's appearance goes from -2.5 to 2.5.

        The coordinate is one of those that vary most over the scenes shown.
        """
        scene = self.model.infer(self.images(crowd, at_least=1))
        chosen = self.pick(scene)
        z = np.asarray(scene.appearance)[np.arange(len(scene)), chosen]
        busiest = np.argsort(-np.asarray(scene.appearance)[np.asarray(scene.present)].std(0))
        coordinate = busiest[np.arange(len(scene)) % len(busiest)]
        edits = []
        for value in np.linspace(-2.5, 2.5, STEPS.value):
            changed = z.copy()
            changed[np.arange(len(scene)), coordinate] = value
            edits.append(scene.with_appearance(chosen, changed))
        return self.traversal(scene, chosen, edits)

    def training_curves(self) -> figures.Figure | None:
        path = self.model.folder / "metrics.jsonl"
        if not path.exists():
            print(f"training_curves: {path} is not there; left out")
            return None
        records = run_files.read_metrics(path)
        wanted = "neg_elbo", "neg_log_likelihood", "kl_location", "kl_appearance", "count_accuracy"
        names = [n for n in wanted if any(n in r or f"held_out_{n}" in r for r in records)]
        return figures.training_curves(records, names, INCHES.value)

    def count_confusion(self) -> figures.Figure:
        confusions = []
        for split in ("test", f"test_{self.builder.builder_config.crowd}"):
            source = input_pipeline.open_split(self.builder, split, ("image", "count"))
            batch = source.read(range(min(len(source), 1_000)))
            inferred = np.asarray(self.model.infer(batch["image"]).count)
            scores = evaluation.count_scores(inferred, batch["count"])
            confusions.append(np.array(scores["count_confusion"]))
        total = np.zeros([max(map(len, confusions))] * 2, int)
        for confusion in confusions:
            total[: len(confusion), : len(confusion)] += confusion
        return figures.count_confusion(total, INCHES.value)


def main(argv):
    model, builder = model_flags.open_model(argv)
    if not isinstance(model, lavae_jax.Model):
        raise app.UsageError("--checkpoint is a baseline; figures need a LAVAE (and --baseline)")
    baseline = model_flags.load(BASELINE.value) if BASELINE.value else None
    if baseline and not isinstance(baseline, lavae_jax.Baseline):
        raise app.UsageError(f"--baseline={BASELINE.value} is not a baseline")
    folder = pathlib.Path(OUTPUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    gallery = Gallery(model, baseline, builder)
    for name in dict.fromkeys(FIGURE.value):
        kind, crowd = name.removesuffix("_crowd"), name.endswith("_crowd")
        draw = getattr(gallery, kind)
        takes_crowd = f"{kind}_crowd" in FIGURES
        figure = draw(crowd) if takes_crowd else draw()
        if figure is not None:
            figures.save(figure, folder / f"{name}.pdf", folder / f"{name}.png")
            print(folder / f"{name}.png", flush=True)


if __name__ == "__main__":
    app.run(main)
