"""Trains a model, on whatever devices there are.

    python launch/train.py --config=configs/mnist1k.py          # the paper's own setting
    python launch/train.py --config=configs/mnist1k.py:cpu      # for 2 cores
    python launch/train.py --config=configs/mnist1k.py:tiny --config.num_train_steps=100

The same command goes on where a run was stopped. Any field of the config can be set
by --config.FIELD=VALUE. On several machines, start the program on each of them: under
Slurm they find each other, on a TPU pod with --distributed (launch/tpu_pod.sh does it);
elsewhere give --coordinator, --num_processes and --process_id.
"""

import os
import shlex
import sys

import _path  # noqa: F401
import jax
from absl import app, flags, logging
from ml_collections import config_flags

from lavae_jax import checkpoints, run_files, training

CONFIG = config_flags.DEFINE_config_file("config", None, "A config, and a recipe after a colon.")
WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder [runs/<config>-<recipe>].")
COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0.")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Processes in all.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "This process, from 0 on.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "One of several processes that find each other: TPU pods, Slurm."
)
flags.mark_flag_as_required("config")

HEARTBEAT_SECONDS = 30  # a process that is silent for longer is taken for dead


def connect() -> None:
    """Joins the other processes, if there are any."""
    given = {
        "coordinator": COORDINATOR.value,
        "num_processes": NUM_PROCESSES.value,
        "process_id": PROCESS_ID.value,
    }
    missing = [f"--{name}" for name, value in given.items() if value is None]
    timeout = {"heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    if not missing:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value, **timeout
        )
    elif len(missing) < len(given):
        raise app.UsageError(f"{' and '.join(missing)} missing: several processes need all three")
    elif DISTRIBUTED.value or _is_one_of_several():
        jax.distributed.initialize(**timeout)


def _is_one_of_several() -> bool:
    """Whether the environment says so: Slurm's, Kubernetes' on TPUs, or JAX's own."""
    environment = os.environ
    return (
        "JAX_COORDINATOR_ADDRESS" in environment
        or "," in environment.get("TPU_WORKER_HOSTNAMES", "")
        or int(environment.get("SLURM_NTASKS", "1")) > 1
    )


def main(argv):
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    connect()
    config = CONFIG.value
    workdir = WORKDIR.value or os.path.join("runs", f"{config.name}-{config.recipe}")
    command = shlex.join([os.path.basename(sys.executable), *sys.argv])
    try:
        code = training.train(config, workdir, command)
    except (
        training.TrainingError,
        checkpoints.CheckpointError,
        run_files.ConfigMismatch,
    ) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    app.run(main)
