"""Starts the playground and measures how quickly it answers several clients at once."""

import pathlib
import subprocess
import sys
import time

import numpy as np
from absl import flags

from benchmarks import timing
from lavae_jax.commands import xla
from lavae_jax.playground import clients

PLAYGROUND = pathlib.Path(__file__).parents[1] / "playground.py"
CLIENTS = flags.DEFINE_integer(
    "clients", 1, "Simultaneous clients of the playground.", lower_bound=1
)
THINK = flags.DEFINE_float(
    "think", 0.0, "Mean seconds that a client waits after each answer.", lower_bound=0
)


def main() -> None:
    """Measures the time from start to first answer, then the latency of each answer."""
    before = time.perf_counter()
    command = [sys.executable, "-u", str(PLAYGROUND), "--port=0", "--nobrowser"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=xla.INITIAL_ENVIRONMENT
    )
    try:
        ready = next((line for line in server.stdout if line.startswith("ready after")), None)
        if ready is None:
            raise OSError("the playground did not start")
        url = ready.split()[4]
        first = clients.simulate(url, 1, 1.0, 0.0)
        timing.report(
            "start", seconds=round(time.perf_counter() - before - 1.0, 1), said=ready.strip()
        )
        if any(answer.error for answer in first):
            raise OSError(f"the playground answers {first}")
        clients.wait_until_warm(url)
        timing.report("all models warm", seconds=round(time.perf_counter() - before, 1))
        answers = clients.simulate(url, CLIENTS.value, timing.SECONDS.value, THINK.value)
    finally:
        server.terminate()
        server.wait()
    kinds = sorted({answer.what for answer in answers})
    for what in ("all", *kinds):
        times = [1e3 * a.seconds for a in answers if what in ("all", a.what)]
        timing.report(
            what,
            clients=CLIENTS.value,
            answers=len(times),
            answers_per_second=round(len(times) / timing.SECONDS.value, 1),
            median_ms=round(float(np.median(times)), 1),
            slowest_ms=round(max(times), 1),
            errors=sum(a.error is not None for a in answers if what in ("all", a.what)),
        )
