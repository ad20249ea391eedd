"""Figures of a trained model (the paper's, training curves, counts, edits) and of data sets."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from lavae_jax import evaluation, figures
from lavae_jax.api import Baseline, Model
from lavae_jax.figures import COLORS, Cross, Curve, Figure, Frame, Panel
from lavae_jax.scene import Index, Scene

if TYPE_CHECKING:
    from lavae_jax.input_pipeline import Source

# --- marked objects ----------------------------------------------------------

STYLES = {  # colour of a frame, and whether its label is on the left
    "": (COLORS[0], True),
    "0": (COLORS[0], True),
    "1": (COLORS[1], False),
}
BOTH = {"0": 0, "1": 1}


def _rendered(model: Model, scene: Scene, marks: Mapping[str, Index]) -> list[Panel]:
    """Makes a panel for each scene, with frames around objects.

    `marks` has the labels and indices of the objects, one index for all scenes or one for each. An
    object that is absent has no frame.
    """
    location, count = np.asarray(scene.location), np.asarray(scene.count)
    size = model.settings.sprite_size
    index = {label: np.broadcast_to(k, len(scene)) for label, k in marks.items()}

    def frames(b: int) -> list[Frame]:
        there = {label: k[b] for label, k in index.items() if k[b] < count[b]}
        return [Frame(location[b, k], size, label, *STYLES[label]) for label, k in there.items()]

    images = np.asarray(model.render(scene))
    return [Panel(image, frames=frames(b)) for b, image in enumerate(images)]


def _transposed(columns: Sequence[Sequence[Panel]]) -> list[tuple[Panel, ...]]:
    return list(zip(*columns, strict=True))


# --- the paper's figures, training curves and counts --------------------------

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
CURVES = (
    Curve("neg_elbo", "−ELBO", "nats"),
    Curve("neg_log_likelihood", "−log p(x | z)", "nats"),
    Curve("kl_location", "KL of locations", "nats"),
    Curve("kl_appearance", "KL of appearances", "nats"),
    Curve("count_accuracy", "count accuracy", "share of scenes", highest=1.0),
)
SAMPLE_COLUMNS = 6
COUNTED = 1_000  # scenes of each source in the confusion matrix of counts


def _title(model: Model | Baseline) -> str:
    if isinstance(model, Baseline):
        return "baseline"
    return "LAVAE, N(0, I)" if model.settings.prior.kind == "normal" else "LAVAE, mixture"


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Draws the figures of a model; each kind of figure has a method.

    Attributes:
        model: a trained LAVAE.
        beside: other models, whose samples are shown next to the model's.
        test: scenes with the features "image" and "count".
        crowd: scenes with many objects and the same features.
        records: the lines of the run's metrics.jsonl.
        seed: seed of samples and of the choice of objects to edit.
        rows: scenes in a figure.
        steps: panels of a traversal.
        panel_inches: the side of a panel.
    """

    model: Model
    beside: Sequence[Model | Baseline]
    test: "Source"
    crowd: "Source"
    records: Sequence[dict] = ()
    seed: int = 0
    rows: int = 6
    steps: int = 8
    panel_inches: float = 1.0

    def draw(self, name: str) -> Figure | None:
        """Draws a figure.

        Args:
            name: one of `FIGURES`.

        Returns:
            The figure; None if the data for it are missing.
        """
        kind = name.removesuffix("_crowd")
        if f"{kind}_crowd" not in FIGURES:
            return getattr(self, kind)()
        return getattr(self, kind)(self.crowd if name.endswith("_crowd") else self.test)

    # --- reconstructions and samples ---------------------------------------------

    def reconstruction(self, source: "Source") -> Figure:
        """Draws scenes, their reconstructions, and the objects' locations and sprites.

        Args:
            source: the scenes.

        Returns:
            The figure.
        """
        images = self._images(source, at_least=1)
        scene = self.model.infer(images)
        seen = self.model.render(scene), scene, self.model.sprites(scene)
        return figures.reconstructions(images, *seen, panel_inches=self.panel_inches)

    def prior_samples(self) -> Figure:
        """Draws samples of the model and of the other models.

        Returns:
            The figure.
        """
        models = (self.model, *self.beside)
        titles = [_title(model) for model in models]
        if len(set(titles)) < len(titles):
            titles = [str(model.folder) for model in models]
        samples = map(self._samples, models)
        return self._sample_blocks(dict(zip(titles, samples, strict=True)))

    def prior_samples_4_5(self) -> Figure:
        """Draws samples of the model with 4 or 5 objects.

        Returns:
            The figure.
        """
        samples = self._samples(self.model, count=[4, 5])
        return self._sample_blocks({"LAVAE with 4 or 5 objects": samples})

    def _samples(self, model: Model | Baseline, **count: Any) -> jax.Array:
        number = self.rows * SAMPLE_COLUMNS
        drawn: Any = model.sample(self.seed, number, canvas=self._canvas(), **count)
        return model.render(drawn) if isinstance(model, Model) else drawn

    def _sample_blocks(self, samples: Mapping[str, jax.Array]) -> Figure:
        """Draws images side by side, in blocks with titles."""
        panels = [[Panel(image) for image in np.asarray(images)] for images in samples.values()]
        blocks = [figures.in_rows(block, SAMPLE_COLUMNS) for block in panels]
        rows = [list(itertools.chain(*parts)) for parts in zip(*blocks, strict=True)]
        return self._panels(rows, blocks=dict.fromkeys(samples, SAMPLE_COLUMNS))

    # --- edited scenes -----------------------------------------------------------

    def swap(self, source: "Source") -> Figure:
        """Draws scenes before and after the locations of their first two objects are swapped.

        Args:
            source: the scenes.

        Returns:
            The figure.
        """
        scene = self.model.infer(self._images(source, at_least=2))
        edits = {"reconstruction": scene, "objects 0 and 1 swapped": scene.swap(0, 1)}
        rows = [_rendered(self.model, edited, BOTH) for edited in edits.values()]
        return self._panels(rows, row_titles=list(edits))

    def location_traversal(self, source: "Source") -> Figure:
        """Draws each scene with one object at several locations on an ellipse.

        Args:
            source: the scenes.

        Returns:
            The figure.
        """
        scene = self.model.infer(self._images(source, at_least=1))
        chosen = self._pick(scene)
        middle = np.array(scene.canvas) / 2
        reach = middle - self.model.settings.sprite_size // 2 - 1
        angles = np.linspace(0, 2 * np.pi, self.steps, endpoint=False)
        path = middle + reach * np.stack([np.sin(angles), np.cos(angles)], axis=-1)
        path = path.astype(int)
        titles = ["reconstruction", *(f"moved to ({row}, {column})" for row, column in path)]
        moved = [scene, *(scene.move(chosen, location) for location in path)]
        columns = [_rendered(self.model, each, {"": chosen}) for each in moved]
        return self._panels(_transposed(columns), column_titles=titles)

    def appearance_traversal(self, source: "Source") -> Figure:
        """Draws each scene with several values of one coordinate of an object's appearance.

        The values are up to 2.5 of the prior's standard deviations from its mean: from -2.5 to 2.5
        for N(0, I). Each scene shows a different coordinate, chosen from those that vary most over
        the scenes in the figure.

        Args:
            source: the scenes.

        Returns:
            The figure.
        """
        scene = self.model.infer(self._images(source, at_least=1))
        chosen, each = self._pick(scene), np.arange(len(scene))
        z = np.asarray(scene.appearance)[each, chosen]
        busiest = np.argsort(-np.asarray(scene.appearance)[np.asarray(scene.present)].std(0))
        coordinate = busiest[each % len(busiest)]
        mean, deviation = (np.asarray(a)[coordinate] for a in self.model.appearance_moments())

        def column(edited: Scene, values: np.ndarray, prefix: str = "") -> list[Panel]:
            panels = _rendered(self.model, edited, {"": chosen})
            return [
                panel._replace(title=f"{prefix}$z_{{{c}}} = {value:.1f}$")
                for panel, c, value in zip(panels, coordinate, values.round(1) + 0.0, strict=True)
            ]

        columns = [column(scene, z[each, coordinate], "inferred: ")]
        for deviations in np.linspace(-2.5, 2.5, self.steps):
            changed, values = z.copy(), mean + deviations * deviation
            changed[each, coordinate] = values
            columns.append(column(scene.with_appearance(chosen, changed), values))
        return self._panels(_transposed(columns))

    def _pick(self, scene: Scene) -> np.ndarray:
        """Picks an object of each scene at random."""
        rng = np.random.default_rng(self.seed)
        return rng.integers(0, np.maximum(np.asarray(scene.count), 1))

    # --- training and counting ---------------------------------------------------

    def training_curves(self) -> Figure | None:
        """Draws the metrics of training over steps.

        Returns:
            The figure; None if there are no metrics.
        """
        known = set().union(*self.records)
        curves = [c for c in CURVES if {c.name, f"held_out_{c.name}"} & known]
        return figures.training_curves(self.records, curves, self.panel_inches) if curves else None

    def count_confusion(self) -> Figure:
        """Draws the confusion matrix of counts on the first scenes of both sources.

        Returns:
            The figure.
        """
        batches = [s.read(range(min(len(s), COUNTED))) for s in (self.test, self.crowd)]
        inferred = [np.asarray(self.model.infer(batch["image"]).count) for batch in batches]
        true = [batch["count"] for batch in batches]
        scores = evaluation.count_scores(np.concatenate(inferred), np.concatenate(true))
        return figures.count_confusion(
            scores["count_confusion"], "number of scenes", self.panel_inches
        )

    # --- parts -------------------------------------------------------------------

    def _images(self, source: "Source", at_least: int) -> np.ndarray:
        """The first scenes with enough objects; if these are too few, other scenes follow."""
        batch = source.read(range(min(len(source), 40 * self.rows)))
        order = np.argsort(batch["count"] < at_least, kind="stable")
        return batch["image"][order[: self.rows]]

    def _canvas(self) -> tuple[int, int]:
        return self.test.read(range(1))["image"].shape[1:3]

    def _panels(self, rows: Sequence[Sequence[Panel]], **titles) -> Figure:
        return figures.panels(rows, **titles, panel_inches=self.panel_inches)


# --- edits -------------------------------------------------------------------


class Edit(NamedTuple):
    """A change to scenes.

    Attributes:
        title: title of its column.
        apply: the change.
        marks: indices of objects 0 and 1 after it, by their labels.
    """

    title: str
    apply: Callable[[Scene], Scene]
    marks: Mapping[str, int] = BOTH


EDITS = (
    Edit("reconstruction", lambda scene: scene),
    Edit("0 and 1 swapped", lambda scene: scene.swap(0, 1)),
    Edit("0 moved to a corner", lambda scene: scene.move(0, [side // 7 for side in scene.canvas])),
    Edit("0 removed", lambda scene: scene.remove(0), {"1": 0}),
    Edit("0 looks like 1", lambda scene: scene.with_appearance(0, scene.appearance[:, 1])),
)


def edits(model: Model, images, scene: Scene) -> Figure:
    """Draws a row for each image: the image, its reconstruction, and edits of its scene.

    Args:
        model: the model that inferred the scenes.
        images: [B, H, W, C].
        scene: B scenes with at least two objects each.

    Returns:
        The figure.
    """
    columns = [[Panel(image) for image in images]]
    columns += [_rendered(model, edit.apply(scene), edit.marks) for edit in EDITS]
    titles = ["input", *(edit.title for edit in EDITS)]
    return figures.panels(_transposed(columns), column_titles=titles)


# --- data --------------------------------------------------------------------


def scenes(images, titles: Sequence[str], centres: Sequence[np.ndarray], caption: str) -> Figure:
    """Draws a grid of scenes with marks at the true centres.

    Args:
        images: [B, H, W, C].
        titles: one for each scene.
        centres: [n, 2] for each scene.
        caption: the text below the grid.

    Returns:
        The figure.
    """
    panels = [
        Panel(image, title, crosses=[Cross(location) for location in its_centres])
        for image, title, its_centres in zip(images, titles, centres, strict=True)
    ]
    return figures.panels(figures.in_rows(panels, 8), caption=caption, panel_inches=1.2)
