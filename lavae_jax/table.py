"""Table 1 of the paper, with our results next to the paper's.

A result is a file written by launch/evaluate.py. Results of one model, data set and recipe that
differ only in their seeds make one row: mean ± standard deviation over seeds. A seed succeeds if
its count accuracy reaches the paper's on `test`, and 99 % on scenes with 7 objects (the paper does
not say whether its number includes those). A LAVAE with a learned prior of appearances is not the
paper's model, so it has a separate row without the paper's numbers. Classical methods, which only
count and locate, also have separate rows.
"""

import dataclasses
import json
import math
import pathlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from lavae_jax.errors import UserError


class TableError(UserError, ValueError):
    """The results cannot be put into a table; the message says which, and why."""


class Published(NamedTuple):
    """Numbers of Table 1.

    Attributes:
        neg_bound: -log p(x), in nats.
        spread: the spread of -log p(x).
        count_accuracy: the lowest count accuracy; None for the baseline.
    """

    neg_bound: float
    spread: float
    count_accuracy: float | None = None


PAPER = {
    ("multi_mnist/1k", "lavae"): Published(42.2, 1.1, 0.999),
    ("multi_mnist/1k", "baseline"): Published(51.6, 0.6),
    ("multi_mnist/10k", "lavae"): Published(60.4, 2.8, 0.997),
    ("multi_mnist/10k", "baseline"): Published(64.6, 0.8),
    ("multi_dsprites", "lavae"): Published(43.9, 1.0, 0.999),
    ("multi_dsprites", "baseline"): Published(45.8, 0.7),
}
PAPER_IMAGES = 10_000
PAPER_SAMPLES = 100
DATASETS = {
    "multi_mnist/1k": "multi-MNIST-1k",
    "multi_mnist/1k_unseen": "held-out digits, of 1k",
    "multi_mnist/10k": "multi-MNIST-10k",
    "multi_mnist/10k_unseen": "held-out digits, of 10k",
    "multi_dsprites": "multi-dSprites",
    "multi_mnist/1k_apart8": "1k, 8 pixels apart",
    "multi_mnist/1k_apart11": "1k, 11 pixels apart",
    "multi_mnist/1k_anywhere": "1k, anywhere",
    "multi_mnist/1k_unseen_anywhere": "held-out digits, of 1k, anywhere",
    "multi_mnist/10k_anywhere": "10k, anywhere",
    "multi_mnist/10k_unseen_anywhere": "held-out digits, of 10k, anywhere",
    "multi_dsprites/anywhere": "multi-dSprites, anywhere",
    "multi_mnist/air": "AIR's multi-MNIST",
}
ALIASES = {"multi_mnist": "multi_mnist/1k", "multi_dsprites/default": "multi_dsprites"}
MODELS = {"lavae": "LAVAE", "baseline": "baseline", "classical": "classical"}
CROWD_ACCURACY = 0.99
COLUMNS = ["data set", "model", "-log p(x) <=", "paper", "n acc. (0-3 / 7)", "paper", "seeds"]


# --- reading -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Result:
    """What the table needs from a file.

    Attributes:
        file: its path.
        dataset: name of the data set.
        kind: a key of `MODELS`.
        recipe: name of the recipe, or of the classical method.
        overrides: changes to the data set.
        seed: seed of the training run.
        num_samples: importance samples.
        support: where q(z_loc) samples; None for other models than LAVAE.
        prior: the prior of appearances.
        neg_bound: the bound on -log p(x); None for classical methods.
        images: number of scenes by split: `test`, then those with a fixed number of objects.
        count_accuracy: count accuracy by split, in the same order.
        entropy: the data entropy; None if it is not known.
    """

    file: str
    dataset: str
    kind: str
    recipe: str
    overrides: str
    seed: int
    num_samples: int
    support: str | None
    prior: str
    neg_bound: float | None
    images: dict[str, int]
    count_accuracy: dict[str, float]
    entropy: float | None


FIELDS = {
    "dataset": str,
    "kind": str,
    "recipe": str,
    "overrides": str,
    "seed": int,
    "num_samples": int,
    "support": str | None,
    "splits": dict,
}
NORMAL = "normal"  # the paper's prior, and that of old results, which do not name one


def read(file: str) -> Result:
    """Reads a result.

    Args:
        file: its path.

    Returns:
        The result.

    Raises:
        TableError: the file cannot be read, or is not a result.
    """
    try:
        text = pathlib.Path(file).read_text()
    except OSError as error:
        raise TableError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TableError(f"{file} is not a result of launch/evaluate.py: it is not text") from None
    return parse(file, text)


def parse(file: str, text: str) -> Result:
    """Parses a result.

    Args:
        file: its path, for error messages.
        text: the content of the file.

    Returns:
        The result.

    Raises:
        TableError: the text is not a result.
    """
    found = _checked_fields(file, text)
    splits = _checked_splits(file, found["splits"])

    def number(split: str, name: str) -> float:
        value = splits[split].get(name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise TableError(f"{file}: {name} of {split} is {value!r}, not a finite number")
        return value

    counted = [] if found["kind"] == "baseline" else ["test", *crowded(splits)]
    is_classical = found["kind"] == "classical"
    return Result(
        file=file,
        dataset=ALIASES.get(found["dataset"], found["dataset"]),
        kind=found["kind"],
        recipe=found["recipe"],
        overrides=",".join(sorted(found["overrides"].split(","))),
        seed=found["seed"],
        num_samples=found["num_samples"],
        support=found["support"],
        prior=found.get("prior") or NORMAL,
        neg_bound=None if is_classical else number("test", "neg_bound"),
        images={split: int(number(split, "images")) for split in counted or ["test"]},
        count_accuracy={split: number(split, "count_accuracy") for split in counted},
        entropy=None if splits["test"].get("entropy") is None else number("test", "entropy"),
    )


def _checked_fields(file: str, text: str) -> dict:
    no_result = f"{file} is not a result of launch/evaluate.py"
    try:
        found = json.loads(text)
    except ValueError:
        raise TableError(f"{no_result}: it is not JSON") from None
    if not isinstance(found, dict):
        raise TableError(f"{no_result}: it is not a JSON object")
    for name, expected in FIELDS.items():
        if name not in found:
            raise TableError(f"{no_result}: it has no {name}")
        if not isinstance(found[name], expected):
            raise TableError(f"{no_result}: its {name} is {found[name]!r}")
    if found["kind"] not in MODELS:
        known = ", ".join(MODELS)
        raise TableError(
            f"{file} is about a model of kind {found['kind']!r}; expected one of {known}"
        )
    return found


def _checked_splits(file: str, splits: dict) -> dict[str, dict]:
    for split, scores in splits.items():
        if not isinstance(scores, dict):
            raise TableError(
                f"{file} is not a result of launch/evaluate.py: its {split} is {scores!r}"
            )
    if "test" not in splits:
        raise TableError(f"{file} has no results of the split `test`, which the table needs")
    return splits


def crowded(splits: Iterable[str]) -> list[str]:
    """Selects the splits with a fixed number of objects, such as test_7.

    Args:
        splits: names of splits.

    Returns:
        Their names, the fewest objects first.
    """
    names = [name for name in splits if re.fullmatch(r"test_[0-9]+", name)]
    return sorted(names, key=lambda name: int(name.removeprefix("test_")))


# --- rows --------------------------------------------------------------------


@dataclasses.dataclass
class Table:
    """Rows of text with marks [1], [2], ... for notes.

    Attributes:
        rows: the cells of each row.
        notes: the text of each mark.
    """

    rows: list[list[str]]
    notes: list[str]


def make_table(results: list[Result]) -> Table:
    """Makes the table.

    For each data set and model, the row with the paper's numbers comes first, then learned priors,
    then results that are not comparable. Below them is the data entropy, if it is known, which is a
    lower bound for any model. If models of one kind and prior have several recipes, each recipe has
    a row with its name.

    Args:
        results: results in any order.

    Returns:
        The table.

    Raises:
        TableError: results of one row differ in more than their seeds.
    """
    table = Table([], [])
    groups = group(results)
    recipes = defaultdict(set)
    for result in results:
        recipes[result.kind, result.prior].add(result.recipe)

    def name(result: Result) -> str:
        return _model(result, len(recipes[result.kind, result.prior]) > 1)

    unknown = sorted({result.dataset for result in results} - DATASETS.keys())
    for dataset in (*DATASETS, *unknown):
        title = DATASETS.get(dataset, dataset)
        for kind in MODELS:
            published = PAPER.get((dataset, kind))
            here = [s for s in groups if (s[0].dataset, s[0].kind) == (dataset, kind)]
            comparable = [seeds for seeds in here if not differences(seeds[0])]
            if published and all(seeds[0].prior != NORMAL for seeds in comparable):
                table.rows.append(_row(title, MODELS[kind], [], published))
            for seeds in sorted(comparable, key=lambda seeds: seeds[0].prior != NORMAL):
                beside = published if seeds[0].prior == NORMAL else None
                table.rows.append(_row(title, name(seeds[0]), seeds, beside))
            for seeds in here:
                if seeds not in comparable:
                    marked = f"{title} {_mark(table.notes, differences(seeds[0]))}"
                    table.rows.append(_row(marked, name(seeds[0]), seeds, None))
        own = [r.entropy for r in results if r.dataset == dataset and not r.overrides]
        known = [entropy for entropy in own if entropy is not None]
        if known:
            table.rows.append([title, "entropy of the data", f"{min(known):.1f}", "", "", "", ""])
    return table


def group(results: list[Result]) -> list[list[Result]]:
    """Groups the results of each row.

    Args:
        results: results in any order.

    Returns:
        The results of each row, sorted by data set, model, prior, recipe and overrides.

    Raises:
        TableError: results of one row differ in more than their seeds, or two have the same seed.
    """
    groups: defaultdict[tuple, list[Result]] = defaultdict(list)
    for result in results:
        row = groups[result.dataset, result.kind, result.prior, result.recipe, result.overrides]
        for other in row:
            _check_same_measurement(other, result)
            if other.seed == result.seed:
                raise TableError(
                    f"{other.file} and {result.file} have the same seed "
                    f"(seed {result.seed} of {_describe(result)})"
                )
        row.append(result)
    return [groups[key] for key in sorted(groups)]


def _check_same_measurement(one: Result, other: Result) -> None:
    for name in ("num_samples", "support", "images"):
        values = [getattr(result, name) for result in (one, other)]
        if values[0] != values[1]:
            first, second = map(_show, values)
            raise TableError(
                f"{one.file} and {other.file} differ in {name} ({first} and {second}); both are "
                f"of {_describe(one)}, and results in a row may differ only in their seeds"
            )


def _show(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{number:,} of {split}" for split, number in value.items())
    return str(value)


def _describe(result: Result) -> str:
    changes = result.overrides and f" with {result.overrides}"
    return f"{result.kind} by recipe {result.recipe} on {result.dataset}{changes}"


def differences(result: Result) -> str:
    """Describes why a result is not comparable with the paper's.

    Args:
        result: a result.

    Returns:
        The differences; empty if it is comparable.
    """
    found = [f"data with {result.overrides}"] if result.overrides else []
    for split, images in result.images.items():
        if images != PAPER_IMAGES:
            found.append(f"scenes of {split}: {images:,} instead of {PAPER_IMAGES:,}")
    if result.num_samples != PAPER_SAMPLES and result.neg_bound is not None:
        found.append(f"importance samples: {result.num_samples} instead of {PAPER_SAMPLES}")
    return "; ".join(found)


def _model(result: Result, name_recipe: bool) -> str:
    if result.kind == "classical":
        return result.recipe.replace("-", " ")
    model = MODELS[result.kind]
    if result.prior != NORMAL:
        model += f", {result.prior}"
    return f"{model} ({result.recipe})" if name_recipe else model


def _mark(notes: list[str], difference: str) -> str:
    """Returns the mark of a note, which is added if it is new."""
    note = f"not comparable with the paper: {difference}"
    if note not in notes:
        notes.append(note)
    return f"[{notes.index(note) + 1}]"


def _row(title: str, model: str, results: list[Result], published: Published | None) -> list[str]:
    paper_bound = paper_accuracy = ""
    if published:
        paper_bound = f"{published.neg_bound} ± {published.spread}"
        if published.count_accuracy is not None:
            paper_accuracy = f">= {published.count_accuracy:.1%}"
    bounds = [result.neg_bound for result in results if result.neg_bound is not None]
    ours = mean_and_spread(bounds) if bounds else ""
    accuracy, seeds = _accuracy(results), _seeds(results, published)
    return [title, model, ours, paper_bound, accuracy, paper_accuracy, seeds]


def mean_and_spread(values: list[float]) -> str:
    """Formats numbers as mean ± standard deviation.

    Args:
        values: at least one number.

    Returns:
        The text; the mean alone for one number.
    """
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


def _accuracy(results: list[Result]) -> str:
    """Mean count accuracy on `test`, then on scenes with 7 objects, or - if that is not known."""
    if not results or not results[0].count_accuracy:
        return ""
    means = [
        f"{statistics.fmean(result.count_accuracy[split] for result in results):.2%}"
        for split in results[0].count_accuracy
    ]
    return " / ".join(means if len(means) > 1 else [*means, "-"])


def _seeds(results: list[Result], published: Published | None) -> str:
    """How many seeds succeed; or only the number of seeds, if success is not defined."""
    if not results or results[0].kind == "classical":
        return ""
    number = str(len(results))
    if not published or published.count_accuracy is None or len(results[0].images) == 1:
        return number
    return f"{sum(succeeds(result, published) for result in results)} of {number}"


def succeeds(result: Result, published: Published) -> bool:
    """Checks whether the count accuracies of a seed are high enough.

    Args:
        result: the result of the seed.
        published: the paper's numbers.

    Returns:
        Whether they reach the paper's on `test`, and `CROWD_ACCURACY` on other splits.
    """
    least = published.count_accuracy
    assert least is not None  # the baseline does not count
    return all(
        accuracy >= (least if split == "test" else CROWD_ACCURACY)
        for split, accuracy in result.count_accuracy.items()
    )


# --- writing -----------------------------------------------------------------


def as_text(table: Table) -> str:
    """Formats a table in columns.

    Args:
        table: the table.

    Returns:
        The text, with the notes below the table.
    """
    lines = [COLUMNS, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join(text + _numbered(table.notes))


def as_markdown(table: Table) -> str:
    """Formats a table in Markdown.

    Args:
        table: the table.

    Returns:
        The text, with the notes below the table.
    """

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    lines = [line(COLUMNS), "|---" * len(COLUMNS) + "|", *map(line, table.rows)]
    for note in _numbered(table.notes):
        lines += ["", note]  # without the empty line, it would be a row
    return "\n".join(lines)


def _numbered(notes: list[str]) -> list[str]:
    return [f"[{number}] {note}" for number, note in enumerate(notes, 1)]


FORMATS = {"text": as_text, "markdown": as_markdown}


def format_files(files: list[str], table_format: str = "text") -> str:
    """Reads results and formats their table.

    Args:
        files: paths of results.
        table_format: one of `FORMATS`.

    Returns:
        The text of the table.

    Raises:
        TableError: there are no files, or they cannot be put into a table.
    """
    if not files:
        raise TableError(
            "name the files that launch/evaluate.py wrote, such as "
            "lavae_jax/weights/*/results*.json"
        )
    return FORMATS[table_format](make_table([read(file) for file in files]))
