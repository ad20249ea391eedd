"""Times the input pipeline."""

import time

from absl import flags

import datasets
from benchmarks import timing
from lavae_jax import input_pipeline
from lavae_jax.commands import data_flags

flags.adopt_module_key_flags(data_flags)


def main() -> None:
    """Measures decoded, shuffled and batched training images per second."""
    builder = data_flags.make_builder()
    datasets.prepare(builder)
    source = input_pipeline.open_split(builder, "train")
    batches = input_pipeline.train_batches(source, timing.BATCH_SIZE.value, seed=0)
    next(batches)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < timing.SECONDS.value:
        next(batches)
        count += timing.BATCH_SIZE.value
    timing.report(
        "input",
        dataset=builder.info.full_name,
        batch_size=timing.BATCH_SIZE.value,
        images_per_second=round(count / elapsed),
    )
