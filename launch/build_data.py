"""Generates a scene data set.

    python launch/build_data.py --dataset=multi_mnist/1k
    python launch/build_data.py --dataset=multi_mnist/10k --mnist_dir=path/to/mnist
    python launch/build_data.py --dataset=multi_dsprites --set=canvas=96,max_count=5

A data set that exists already is left unchanged.
"""

import time

import _checkout

_checkout.prepare()

from absl import flags

import datasets
from lavae_jax.commands import data_flags, program

flags.adopt_module_key_flags(data_flags)


def main():
    """Generates the data set that the flags name."""
    builder = data_flags.make_builder()
    if builder.is_prepared():
        print(f"{builder.info.full_name} is already in {builder.data_dir}")
        return
    start = time.perf_counter()
    datasets.prepare(builder)
    sizes = ", ".join(f"{name} {s.num_examples:,}" for name, s in builder.info.splits.items())
    print(
        f"{builder.info.full_name} ({sizes}; {builder.info.dataset_size}) "
        f"in {time.perf_counter() - start:.0f} s: {builder.data_dir}"
    )


if __name__ == "__main__":
    program.run(main)
