"""Measures the parts of the system; prints JSON lines.

python launch/benchmark.py --what=input --dataset=multi_mnist/1k
"""

import json
import time

import _path  # noqa: F401
import data_flags
from absl import app, flags

from lavae_jax import input_pipeline

WHAT = flags.DEFINE_enum("what", "input", ["input"], "What to measure.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images in a batch.", lower_bound=1)
SECONDS = flags.DEFINE_float("seconds", 5.0, "How long to measure.", lower_bound=0.1)


def report(what: str, **values) -> None:
    print(json.dumps({"what": what, **values}), flush=True)


def benchmark_input() -> None:
    """Decoded, shuffled and batched training images a second."""
    builder = data_flags.make_builder()
    data_flags.prepare(builder)
    source = input_pipeline.open_split(builder, "train")
    batches = input_pipeline.train_batches(source, BATCH_SIZE.value, seed=0)
    next(batches)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SECONDS.value:
        next(batches)
        count += BATCH_SIZE.value
    report(
        "input",
        dataset=builder.info.full_name,
        batch_size=BATCH_SIZE.value,
        images_per_second=round(count / elapsed),
    )


def main(argv):
    data_flags.refuse_arguments(argv)
    {"input": benchmark_input}[WHAT.value]()


if __name__ == "__main__":
    app.run(main)
