"""Table 1: ours beside the paper's.

    python launch/table.py results/*.json                  # text
    python launch/table.py --format=markdown results/*.json

Takes files that launch/evaluate.py wrote. Runs of the same model on the same data set
with different seeds are one cell: mean ± standard deviation over seeds. A seed succeeds
if its count accuracy reaches the paper's on `test`, and 99 % on the crowded split; whether
the paper's figure takes that in, it does not say.
"""

import json
import pathlib
from collections import defaultdict

import _path  # noqa: F401
import numpy as np
from absl import app, flags

FORMAT = flags.DEFINE_enum("format", "text", ["text", "markdown", "latex"], "How to write it.")

DATASETS = {
    "multi_mnist/1k": "multi-MNIST-1k",
    "multi_mnist/10k": "multi-MNIST-10k",
    "multi_dsprites": "multi-dSprites",
}
MODELS = {"lavae": "LAVAE", "baseline": "baseline"}
# Table 1 of the paper: -log p(x), its spread, and the least count accuracy.
PAPER = {
    ("lavae", "multi_mnist/1k"): (42.2, 1.1, 0.999),
    ("lavae", "multi_mnist/10k"): (60.4, 2.8, 0.997),
    ("lavae", "multi_dsprites"): (43.9, 1.0, 0.999),
    ("baseline", "multi_mnist/1k"): (51.6, 0.6, None),
    ("baseline", "multi_mnist/10k"): (64.6, 0.8, None),
    ("baseline", "multi_dsprites"): (45.8, 0.7, None),
}
CROWD_ACCURACY = 0.99
COLUMNS = ["data set", "model", "-log p(x) <=", "paper", "n acc. (0-3 / 7)", "paper", "seeds"]


def read(paths: list[str]) -> dict:
    """Results by model and data set."""
    cells = defaultdict(list)
    for path in paths:
        try:
            result = json.loads(pathlib.Path(path).read_text())
            cells[result["kind"], result["dataset"].removesuffix("/default")].append(result)
            result["splits"]["test"]["neg_log_likelihood"]
            result["seed"]
        except (OSError, ValueError, KeyError) as error:
            raise SystemExit(
                f"error: {path} is not a result of launch/evaluate.py: {error!r}"
            ) from None
    for (kind, dataset), results in cells.items():
        for field in ("recipe", "overrides", "num_samples", "support"):
            values = sorted({str(r.get(field)) for r in results})
            if len(values) > 1:
                raise SystemExit(
                    f"error: results of {kind} on {dataset} differ in {field} "
                    f"({', '.join(values)}); a cell is for runs that differ in their seeds alone"
                )
        seeds = [r["seed"] for r in results]
        if len(set(seeds)) < len(seeds):
            raise SystemExit(f"error: {kind} on {dataset}: the same seed twice, of {seeds}")
    return cells


def spread(values: list[float], digits: int = 1) -> str:
    text = f"{np.mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {np.std(values, ddof=1):.{digits}f}"


def accuracies(results: list[dict]) -> dict[str, list[float]]:
    """Count accuracy of each seed by split: test first, then the crowded one."""
    names = sorted({name for r in results for name in r["splits"]})
    return {
        name: [r["splits"][name]["count_accuracy"] for r in results if name in r["splits"]]
        for name in names
    }


def rows(cells: dict) -> list[list[str]]:
    table = []
    for dataset, title in DATASETS.items():
        for kind, model in MODELS.items():
            results = cells.get((kind, dataset), [])
            paper, paper_spread, paper_accuracy = PAPER[kind, dataset]
            row = [title, model, "", f"{paper} ± {paper_spread}", "", "", ""]
            if results:
                row[2] = spread([r["splits"]["test"]["neg_log_likelihood"] for r in results])
                row[6] = str(len(results))
            if paper_accuracy is not None:
                row[5] = f">= {paper_accuracy:.1%}"
                by_split = accuracies(results)
                row[4] = " / ".join(f"{np.mean(values):.2%}" for values in by_split.values())
                good = sum(
                    all(
                        scores["count_accuracy"]
                        >= (paper_accuracy if name == "test" else CROWD_ACCURACY)
                        for name, scores in r["splits"].items()
                    )
                    for r in results
                )
                row[6] = f"{good} of {len(results)}" if results else ""
            table.append(row)
    return table


def write_text(table: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [COLUMNS, *table]) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [COLUMNS, *table]
    )


def write_markdown(table: list[list[str]]) -> str:
    header = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    return "\n".join(header + ["| " + " | ".join(row) + " |" for row in table])


def write_latex(table: list[list[str]]) -> str:
    def escape(cell: str) -> str:
        cell = cell.replace("%", r"\%").replace(">=", r"$\geq$").replace("<=", r"$\leq$")
        return cell.replace("±", r"$\pm$")

    body = [" & ".join(map(escape, row)) + r" \\" for row in table]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{@{{}}{'l' * len(COLUMNS)}@{{}}}}",
            r"\toprule",
            " & ".join(map(escape, COLUMNS)) + r" \\\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def main(argv):
    writers = {"text": write_text, "markdown": write_markdown, "latex": write_latex}
    print(writers[FORMAT.value](rows(read(argv[1:]))))


if __name__ == "__main__":
    app.run(main)
