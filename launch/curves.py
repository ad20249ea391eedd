"""Draws the training curves of several runs in one picture.

    python launch/curves.py runs/mnist1k-joint runs/mnist1k-cpu --output=curves.png
    python launch/curves.py --metric=held_out_neg_elbo,loss --highest=120 runs/*

The arguments are runs' folders, or the names of shipped weights.
"""

import pathlib

import _checkout

_checkout.prepare()

from absl import app, flags

from lavae_jax import figures, model_files
from lavae_jax.commands import program
from lavae_jax.training import files

METRICS = flags.DEFINE_list(
    "metric",
    ["held_out_neg_elbo", "held_out_count_accuracy"],
    "The metrics to draw, by their names in metrics.jsonl.",
)
HIGHEST = flags.DEFINE_float("highest", None, "Cut off values above this one.")
OUTPUT = flags.DEFINE_string("output", "curves.png", "The picture to write.")


def read(name: str) -> list[dict]:
    """Reads the metrics of a run.

    Args:
        name: the run's folder, or the name of shipped weights.

    Returns:
        A dictionary for each line of metrics.jsonl.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    path = model_files.find(name) / model_files.METRICS
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return files.read_metrics(path)


def main(names: list[str]) -> None:
    """Draws the curves.

    Args:
        names: the runs' folders, or the names of shipped weights.
    """
    if not names:
        raise app.UsageError("give the folders of runs")
    output = program.output_file(OUTPUT.value, program.PICTURES)
    runs = {pathlib.Path(name).name: read(name) for name in names}
    for metric in METRICS.value:
        if not any(metric in record for records in runs.values() for record in records):
            known = sorted(set().union(*(r for records in runs.values() for r in records)))
            raise app.UsageError(f"--metric={metric}: expected one of {', '.join(known)}")
    figures.save(figures.compared(runs, METRICS.value, HIGHEST.value), output)
    print(f"written to {output}")


if __name__ == "__main__":
    program.run(main, positional=True)
