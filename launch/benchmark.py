"""Measures the parts of the system and their alternatives; prints JSON lines.

    python launch/benchmark.py                      # the networks of the cpu recipe
    python launch/benchmark.py --model=paper --batch_size=8
    python launch/benchmark.py --what=prior --components=10000
    python launch/benchmark.py --what=input --dataset=multi_mnist/1k
    python launch/benchmark.py --what=playground --clients=20 --seconds=60

`forward_ms` and `gradient_ms` are medians over repeated calls after compilation; a gradient
includes its forward pass. `share` is a part's share of the whole gradient.

The model and the prior are measured twice: without and with the XLA flags that the programs set
(`xla_flags`). With LAVAE_XLA_FLAGS=0 they are measured once, without the flags; with =1 once, with
the flags. For the prior, training steps of the recipe `mixture` alternate between N(0, I), the
mixture with the components near each object, and the mixture with all components.

For the playground, it reports the time until the first answer, the answers per second, and their
latency. Each client waits for `--think` seconds, on average, after each answer.
"""

import _checkout

_checkout.prepare()

from absl import flags
from benchmarks import input as input_pipeline
from benchmarks import model, playground, prior, timing

from lavae_jax.commands import program

BENCHMARKS = {
    "model": model,
    "prior": prior,
    "input": input_pipeline,
    "playground": playground,
}
WHAT = flags.DEFINE_enum("what", "model", list(BENCHMARKS), "What to measure.")
for module in (timing, *BENCHMARKS.values()):
    flags.adopt_module_key_flags(module)


def main():
    """Runs the benchmark that --what names."""
    BENCHMARKS[WHAT.value].main()


if __name__ == "__main__":
    program.run(main)
