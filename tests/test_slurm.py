"""launch/slurm.sbatch: when it requeues itself, and how a run resumes under a real Slurm."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import micro
import numpy as np
import pytest
from conftest import ROOT

from lavae_jax import checkpoints

SCRIPT = str(ROOT / "launch" / "slurm.sbatch")
STEPS = 60


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


# --- what the script does with an exit code ----------------------------------


@pytest.mark.parametrize(
    ("code", "restarts", "said", "requeued"),
    [
        (0, 0, "finished", False),
        (1, 0, "not requeued: the run failed with exit code 1", False),
        (75, 0, "requeued, to resume from its last checkpoint (restart 1 of at most 3)", True),
        (137, 2, "requeued, to resume from its last checkpoint (restart 3 of at most 3)", True),
        (143, 3, "not requeued: interrupted with exit code 143 after 3 restarts", False),
    ],
)
def test_a_job_is_requeued_if_it_was_interrupted(code, restarts, said, requeued, tmp_path):
    """With programs that stand in for Slurm's."""
    for name, body in {
        "srun": f'echo "srun: $*"; exit {code}',
        "scontrol": 'echo "scontrol: $*"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHON": "my_python",
        "MAX_RESTARTS": "3",
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": str(restarts),
        "SLURM_CPUS_PER_TASK": "4",
    }
    result = subprocess.run(
        ["bash", SCRIPT, "--config=x y"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == code
    assert not result.stderr
    assert "--cpus-per-task=4 my_python launch/train.py --config=x y\n" in result.stdout
    assert f"job 7: {said}" in result.stdout or f"; {said}" in result.stdout
    assert ("scontrol: requeue 7" in result.stdout) == requeued


# --- a real job --------------------------------------------------------------


@pytest.fixture
def slurm():
    """Slurm's commands; the jobs have to run on this machine, where a task can be killed."""
    try:
        command = ["srun", "--immediate=10", "--ntasks=2", "hostname"]
        hosts = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        hosts = []
    if hosts != [socket.gethostname()] * 2:
        pytest.skip("needs a Slurm that runs two tasks on this machine: `srun --ntasks=2 hostname`")

    def call(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return call


@pytest.fixture
def submit(slurm, monkeypatch, tmp_path):
    """Sends the script with flags of train.py; cancels the job when the test ends."""
    monkeypatch.setenv("PYTHON", sys.executable)
    jobs = []

    def submit(*arguments: str) -> str:
        log = f"--output={tmp_path / 'log'}"
        jobs.append(slurm("sbatch", "--parsable", log, SCRIPT, *arguments).strip())
        return jobs[-1]

    yield submit
    for job in jobs:
        subprocess.run(["scancel", job])


def wait_for(condition, log, seconds=120):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, log.read_text() if log.exists() else "it did not start"
        time.sleep(0.01)


def test_a_run_that_loses_a_task_resumes_as_if_nothing_had_been(
    slurm, submit, launch_anew, data_dir, tmp_path
):
    log, run, one = (tmp_path / name for name in ("log", "run", "one"))
    flags = [*micro.flags(steps=STEPS, checkpoint_every_steps=10, batch_size=8)]
    flags += ["--config.budget.slots=10", "--config.budget.objects_per_image=10"]
    flags += [f"--config.dataset.data_dir={data_dir}"]
    result = launch_anew("train.py", *flags, f"--workdir={one}", JAX_NUM_CPU_DEVICES="2")
    assert result.returncode == 0, result.stderr

    job = submit(*flags, f"--workdir={run}")

    def state(name):
        return re.search(rf"\b{name}=(\w+)", slurm("scontrol", "show", "job", job))[1]

    wait_for(lambda: checkpoints.steps(run / "checkpoints"), log)
    tasks = [line.split() for line in slurm("scontrol", "listpids", job).splitlines()]
    [victim] = [int(task[0]) for task in tasks if task[-1] == "1"]
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: (state("JobState"), state("Restarts")) == ("PENDING", "1"), log, seconds=60)
    # Not in two minutes; nor at once, when Slurm still refuses a job that it has just ended.
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now+5")
    wait_for(lambda: state("JobState") not in ("PENDING", "RUNNING", "COMPLETING"), log)

    text = log.read_text()
    assert state("JobState") == "COMPLETED", text
    assert "task 1: Killed" in text
    assert f"job {job}: interrupted with exit code 137; requeued" in text
    assert re.search(r"resuming after step \d+", text)
    assert f"job {job}: finished" in text
    assert_bitwise_equal(one, run)


def assert_bitwise_equal(one, other):
    assert micro.metrics(one) == micro.metrics(other)
    assert len(micro.metrics(one)) == STEPS
    ours, theirs = micro.newest(one), micro.newest(other)
    assert ours.step == theirs.step == STEPS
    assert ours.arrays.keys() == theirs.arrays.keys()
    for name, array in ours.arrays.items():
        np.testing.assert_array_equal(array, theirs.arrays[name], err_msg=name)
