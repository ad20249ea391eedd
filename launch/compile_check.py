"""Compiles the programs of a run for accelerators that this machine does not have.

    python launch/compile_check.py --config=configs/mnist1k.py:paper --topology=v5e:2x2,v4:2x2x4
    python launch/compile_check.py --config=configs/mnist1k.py:cpu --platform=cuda

The table has a row for each phase's training step and for the evaluation: the seconds that the
TPU's own compiler takes and, for each device and step, its estimates of the arithmetic, the bytes
to and from memory, the bytes sent to other devices, and the memory needed (also as a share of the
device's). The time of a step is a lower bound that follows from these by the roofline model. Real
steps take longer, since the compiler counts a loop's body once, and few channels do not fill a
matrix unit. With --platform=cuda the steps are only lowered, which shows that each operation exists
on that platform.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing is run

import _checkout

_checkout.prepare()

from absl import app, flags
from ml_collections import config_flags

from lavae_jax.commands import program, run_data
from lavae_jax.training import compile_check

CONFIG = config_flags.DEFINE_config_file("config", None, "A config, and a recipe after a colon.")
TOPOLOGY = flags.DEFINE_list("topology", ["v5e:2x2"], "Slices of TPUs, separated by commas.")
PLATFORM = flags.DEFINE_enum("platform", "tpu", ["tpu", "cuda", "rocm"], "What to compile for.")
PHASE = flags.DEFINE_list(
    "phase", [], "Phases to compile, or evaluation, separated by commas [all of them]."
)
flags.mark_flag_as_required("config")

COLUMNS = ("config", "for", "program", "compiled in", "GFLOP", "MB moved", "MB sent")
COLUMNS += ("MB of memory", "of the device's", "step, at least")


def row(name: str, topology: str, program: str, report, chip) -> str:
    """Formats a row of the table.

    Args:
        name: the name of the config and its recipe.
        topology: the topology of the devices.
        program: the name of the program.
        report: its costs, a `compile_check.Report`.
        chip: the performance of a device, a `compile_check.Chip`; None if unknown.

    Returns:
        A line of Markdown.
    """
    share = f"{report.memory / chip.memory:.1%}" if chip else "?"
    least = f"{1e3 * report.least_seconds(chip):.2f} ms" if chip else "?"
    cells = [name, topology, program, f"{report.seconds:.0f} s", f"{report.flops / 1e9:.2f}"]
    cells += [f"{n / 1e6:.1f}" for n in (report.bytes_moved, report.bytes_sent, report.memory)]
    return "| " + " | ".join([*cells, share, least]) + " |"


def main():
    """Compiles or lowers the programs, and prints the table."""
    config = CONFIG.value
    name = f"{config.name}:{config.recipe}"
    canvas = run_data.canvas(config)
    wanted = list(compile_check.programs(config, canvas))
    names = [program.name for program in wanted]
    for phase in PHASE.value:
        if phase not in names:
            raise app.UsageError(f"--phase={phase}: expected one of {', '.join(names)}")
    wanted = [program for program in wanted if not PHASE.value or program.name in PHASE.value]
    if PLATFORM.value != "tpu":
        for program in wanted:
            count = compile_check.lower_for(program, PLATFORM.value)
            print(f"{name} {program.name}: {count} operations lowered for {PLATFORM.value}")
        return
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for topology in TOPOLOGY.value:
        devices = compile_check.tpu_devices(topology)
        chip = compile_check.chip_of(devices)
        for program in wanted:
            report = compile_check.compile_for(program, devices)
            print(row(name, topology, program.name, report, chip), flush=True)


if __name__ == "__main__":
    program.run(main)
