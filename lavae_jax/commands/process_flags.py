"""The flags of a program that several processes may run together."""

import os
import sys
from typing import Any

import jax
from absl import app, flags
from jax.experimental import multihost_utils

COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0.")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Total number of processes.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Whether processes find each other automatically (TPU pods, Slurm)."
)

HEARTBEAT_SECONDS = 30  # a process without a heartbeat for longer is considered dead


def connect(argv: list[str] | None = None) -> None:
    """Connects this process with the others of a job, if there are any.

    Args:
        argv: the words of the command; flags other than those of this module are ignored. By
            default, those of this process.

    Raises:
        UsageError: some of --coordinator, --num_processes and --process_id are missing.
    """
    values = flags.FlagValues()
    for flag in (COORDINATOR, NUM_PROCESSES, PROCESS_ID, DISTRIBUTED):
        values[flag.name] = flags.FLAGS[flag.name]
    values(sys.argv if argv is None else argv, known_only=True)
    # JAX's own handler would swallow a SIGTERM that comes before training begins.
    jax.config.update("jax_enable_preemption_service", False)
    given: dict[str, Any] = {
        name: values[name].value for name in ("coordinator", "num_processes", "process_id")
    }
    missing = [f"--{name}" for name, value in given.items() if value is None]
    timeout: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    if not missing:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(*given.values(), **timeout)
    elif len(missing) < len(given):
        raise app.UsageError(f"{' and '.join(missing)} missing: several processes need all three")
    elif values["distributed"].value or _is_one_of_several():
        jax.distributed.initialize(**timeout)
    if jax.distributed.is_initialized():
        # On CPUs, the first synchronisation times out after 30 s: do it while all processes wait.
        multihost_utils.sync_global_devices("connected")


def _is_one_of_several() -> bool:
    """Whether the environment is that of a job: of Slurm, of Kubernetes on TPUs, or JAX's own."""
    environment = os.environ
    return (
        "JAX_COORDINATOR_ADDRESS" in environment
        or "," in environment.get("TPU_WORKER_HOSTNAMES", "")
        or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1  # of srun, not of the whole job
    )
