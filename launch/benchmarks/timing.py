"""What the benchmarks share: flags, timing, and output as JSON lines."""

import json
import os
import subprocess
import sys
import time

import jax
import numpy as np
from absl import flags

from lavae_jax.commands import xla

BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images in a batch.", lower_bound=1)
SECONDS = flags.DEFINE_float("seconds", 2.0, "How long to measure each part.", lower_bound=0.1)

FLAGS_SET = os.environ.get("LAVAE_XLA_FLAGS")  # "0" or "1"; None to measure both


def report(what: str, **values) -> None:
    """Prints a measurement as a line of JSON.

    Args:
        what: the part that was measured.
        **values: the results by name.
    """
    if FLAGS_SET:
        values["xla_flags"] = FLAGS_SET != "0"
    print(json.dumps({"what": what, **values}), flush=True)


def milliseconds(function, *arguments, seconds: float | None = None) -> float:
    """Times a function, after a call that compiles it.

    Args:
        function: the function.
        *arguments: its arguments.
        seconds: how long to repeat it; by default --seconds.

    Returns:
        The median time of a call.
    """
    jax.block_until_ready(function(*arguments))
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < (seconds or SECONDS.value):
        before = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - before)
    return round(1e3 * float(np.median(times)), 2)


def measure(part: str, form: str, function, first, *rest, whole=None, gradient=True) -> None:
    """Times function(first, *rest) and its gradient with respect to `first`; prints the result.

    Args:
        part: the part of the system.
        form: which of its alternatives this is.
        function: computes it.
        first: the first argument.
        *rest: the other arguments.
        whole: the time of the gradient of the whole system, to report the part's share of it.
        gradient: whether to time the gradient.
    """

    def pull_back(cotangents, first, *rest):
        _, pull = jax.vjp(lambda a: function(a, *rest), first)
        return pull(cotangents)

    times = {"forward_ms": milliseconds(jax.jit(function), first, *rest)}
    if gradient:
        outputs = jax.eval_shape(function, first, *rest)
        key = jax.random.key(0)
        cotangents = jax.tree.map(lambda a: jax.random.normal(key, a.shape, a.dtype), outputs)
        times["gradient_ms"] = milliseconds(jax.jit(pull_back), cotangents, first, *rest)
        if whole:
            times["share"] = round(times["gradient_ms"] / whole, 3)
    report(part, form=form, **times)


def with_and_without_flags(measure) -> None:
    """Measures without and with the XLA flags, unless LAVAE_XLA_FLAGS is set.

    XLA reads its flags once per process, so each measurement runs in its own process.

    Args:
        measure: prints measurements.
    """
    if FLAGS_SET:
        measure()
        return
    for flags_set in ("0", "1"):
        environment = {**xla.INITIAL_ENVIRONMENT, "LAVAE_XLA_FLAGS": flags_set}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
