"""launch/train.py as users start it: processes, devices, signals, mistakes."""

import json
import os
import pathlib
import resource
import shutil
import signal
import time

import micro
import numpy as np
import pytest
from conftest import ROOT
from micro import metrics, newest

import datasets
from lavae_jax import checkpoints


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def arguments(data_dir, tmp_path):
    """The program and its flags for a short run in a folder of its own."""

    def make(workdir="run", **kwargs):
        folders = [f"--workdir={tmp_path / workdir}", f"--config.dataset.data_dir={data_dir}"]
        return ["train.py", *micro.flags(**kwargs), *folders]

    return make


# --- devices and processes ---------------------------------------------------


def assert_same_training(one, other):
    """Metrics of every step, and the whole update of the parameters."""
    names = ["loss", "neg_elbo", "kl_location", "auxiliary_neg_elbo"]
    names += [f"gradient_norm_{part}" for part in ("lavae.location", "lavae.decoder", "auxiliary")]
    for name in names:
        ours, theirs = metrics(one, name), metrics(other, name)
        assert len(ours) == 3
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-3)
    ours, theirs = newest(one).arrays, newest(other).arrays
    for prefix in ("state.params.", "state.batch_stats."):
        names = [n for n in ours if n.startswith(prefix)]
        error = sum(np.sum((ours[n] - theirs[n]) ** 2.0) for n in names)
        assert error < 1e-6 * sum(np.sum(ours[n] ** 2.0) for n in names)


def test_devices_and_processes_make_no_difference(arguments, launch, start_two, tmp_path):
    room = {
        "warmup": (30, 20),
        "batch_size": 8,
        "budget.slots": 10,
        "budget.objects_per_image": 10.0,
    }
    room |= {"checkpoint_every_steps": 1}  # so that two processes can resume what one began
    one = launch(*arguments(steps=3, workdir="one", eval_every_steps=3, **room))
    assert one.returncode == 0, one.stderr
    assert "Downloading" not in one.stdout + one.stderr
    assert list(metrics(tmp_path / "one", "held_out_count_accuracy")) == [3]
    environment = json.loads((tmp_path / "one" / "environment.json").read_text())
    assert "--config.num_train_steps=3" in environment["command"]
    assert "xla_cpu_experimental_ynn_fusion_type=" in environment["compiler_flags"]["XLA_FLAGS"]
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for later in ("2", "3"):
        shutil.rmtree(tmp_path / "two" / "checkpoints" / later)
    processes = start_two(*arguments(steps=3, workdir="two", **room), JAX_NUM_CPU_DEVICES="2")
    for process in processes:
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
        assert ("resuming after step 1" in stdout) == (process is processes[0])
    assert_same_training(tmp_path / "one", tmp_path / "two")


def test_the_mixture_starts_the_same_on_any_devices(arguments, launch, start_two, tmp_path):
    """Bit for bit, on one and on two processes with two each; with a learning rate of 0, the
    first step leaves it as it started."""
    still = {"recipe": "mixture", "curriculum.mixture.learning_rate": 0.0}
    on_one = launch(*arguments(steps=3, workdir="one", **still))
    assert on_one.returncode == 0, on_one.stderr
    shutil.copytree(tmp_path / "one", tmp_path / "four")
    shutil.rmtree(tmp_path / "four" / "checkpoints" / "3")
    on_four = start_two(*arguments(steps=3, workdir="four", **still), JAX_NUM_CPU_DEVICES="2")
    for process in on_four:
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
    names = ("logits", "features")
    one, four = (
        [newest(tmp_path / run).arrays[f"state.params.lavae.prior.{name}"] for name in names]
        for run in ("one", "four")
    )
    assert np.ptp(one[1], axis=1).any()
    for ours, theirs in zip(one, four, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_other_processes_end_when_one_dies(arguments, start_two, tmp_path):
    processes = start_two(*arguments(steps=100_000))
    wait_for_steps(tmp_path / "run", processes[0])
    processes[1].kill()
    stdout, stderr = processes[0].communicate(timeout=60)
    assert processes[0].returncode in (os.EX_TEMPFAIL, -signal.SIGABRT), stderr
    assert "another process died" in stdout or "heartbeat" in stderr


# --- stops -------------------------------------------------------------------


def wait_for(condition, process, seconds=120):
    deadline = time.time() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.time() < deadline, "it took too long"
        time.sleep(0.002)


def wait_for_steps(run, process, seconds=120):
    wait_for(lambda: (run / "metrics.jsonl").exists() and len(metrics(run)) > 2, process, seconds)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_resume(number, arguments, start, tmp_path):
    process = start(*arguments(steps=100_000, checkpoint_every_steps=100_000))
    run = tmp_path / "run"
    wait_for_steps(run, process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    assert "stop requested: finishing this step" in stdout
    assert "to resume:" in stdout
    assert f"--workdir={run}" in stdout.splitlines()[-1]
    assert newest(run).step == max(metrics(run))


def test_an_interrupted_run_resumes_bit_for_bit_as_users_run_it(
    arguments, start, launch_anew, tmp_path
):
    """With XLA's optimisations on; other tests turn most of them off, to compile faster."""
    least = {"model.location.width": 1, "model.location.head_width": 1, "model.location.blocks": 0}
    least |= {"model.latent_size": 1, "auxiliary.width": 1}
    least |= {"recipe": "cpu", "curriculum.appearance.steps": 100_000}
    as_users = {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "XLA_FLAGS": f"--xla_dump_to={tmp_path / 'dumped'} --xla_dump_hlo_module_re=jit__fun",
    }
    process = start(*arguments("pieces", steps=100_000, **least), **as_users)
    wait_for_steps(tmp_path / "pieces", process, seconds=300)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, stderr
    stopped = newest(tmp_path / "pieces").step
    for workdir in ("pieces", "whole"):
        run = launch_anew(*arguments(workdir, steps=stopped + 3, **least), **as_users)
        assert run.returncode == 0, run.stderr
        assert (f"resuming after step {stopped}" in run.stdout) == (workdir == "pieces")

    options = [file.read_text() for file in (tmp_path / "dumped").glob("*.debug_options")]
    assert options  # of the compiler; those that tests have otherwise:
    for other in ("xla_backend_optimization_level: 0", "xla_cpu_use_fusion_emitters: false"):
        assert not any(other in text for text in options)
    pieces, whole = newest(tmp_path / "pieces"), newest(tmp_path / "whole")
    assert pieces.step == whole.step == stopped + 3
    assert pieces.arrays.keys() == whole.arrays.keys()
    for name, values in whole.arrays.items():
        np.testing.assert_array_equal(pieces.arrays[name], values, err_msg=name)
    assert metrics(tmp_path / "pieces") == metrics(tmp_path / "whole")


@pytest.mark.parametrize("seconds", [0.8, 2.0])
def test_ctrl_c_during_the_start_exits_without_a_traceback(seconds, arguments, start):
    process = start(*arguments(steps=100_000))
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted" in stderr or "stop requested" in stdout  # on a fast machine
    assert "Traceback" not in stderr


def test_a_second_ctrl_c_does_not_wait_for_the_compiler(arguments, start):
    """After it, the process computes next to nothing."""

    def seconds_of_ended_processes():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def seconds_so_far():
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    process = start(*arguments(steps=100_000, warmup=(9, 9)), JAX_COMPILATION_CACHE_DIR="")
    while not process.stdout.readline().startswith("timing a few steps"):  # it compiles them
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().startswith("stop requested")
    ended, before = seconds_of_ended_processes(), seconds_so_far()
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert stdout.startswith("stopped at once")
    assert process.returncode == 128 + signal.SIGINT
    assert seconds_of_ended_processes() - ended - before < 0.1 * before


def test_a_kill_while_saving_is_survived(arguments, start, launch, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    process = start(*arguments(steps=100_000, checkpoint_every_steps=1))

    def saving():
        return len(checkpoints.steps(folder)) > 1 and list(folder.glob(".unfinished-*/arrays"))

    wait_for(saving, process)
    process.kill()
    process.wait()
    whole = newest(tmp_path / "run")
    assert whole is not None
    result = launch(*arguments(steps=whole.step + 2))
    assert result.returncode == 0, result.stderr
    assert f"resuming after step {whole.step}" in result.stdout
    assert newest(tmp_path / "run").step == whole.step + 2


def test_a_full_disk_ends_the_run_with_a_message(arguments, data_dir, launch_anew, tmp_path):
    """A limit on the size of files stands in for the disk. The data set is there before."""
    options = {**datasets.options(micro.config().dataset), "data_dir": data_dir}
    datasets.prepare(datasets.make_builder(**options))
    wide = {"model.decoder.hidden": "(64,)"}
    limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "-"]
    environment = {"JAX_COMPILATION_CACHE_DIR": ""}
    result = launch_anew(*arguments(steps=2, **wide), prefix=limited, **environment)
    assert result.returncode == 1
    assert "the checkpoint of step 2 could not be written" in result.stderr
    assert "there is no earlier one" in result.stderr
    assert newest(tmp_path / "run") is None


# --- mistakes ----------------------------------------------------------------


MISTAKES = [
    (["--config.batch_sise=3"], "'batch_sise' Did you mean \"batch_size\""),
    (["--config.batch_size=many"], "batch_size"),
    (["--config.batch_size=0"], "config.batch_size=0 must be at least 1"),
    (
        ["--config=configs/mnist1k.py:gpu"],
        "there is no recipe 'gpu'; expected one of paper, described",
    ),
    (["--config=mnist2k"], "there is no such file; expected a path or one of baseline_dsprites"),
    (["--config.dataset.name=mnist"], "'mnist'"),
    (["--config.dataset.held_out=5000"], "held_out=5000"),
    (["--config.model.channels=3"], "channels=3"),
    (["--config.model.appearance.network=foo"], "expected one of 'residual', 'dense'"),
    (["--config.model.latent_size=0"], "latent_size=0 must be at least 1"),
    (["--config.kind=forest"], "config.kind='forest': expected one of lavae, baseline"),
    (["--config.dataset.overrides=canvas"], "'canvas' in 'canvas' is not field=number"),
    (["--coordinator=127.0.0.1:1"], "--num_processes and --process_id missing"),
    (["word"], "unexpected argument 'word'"),
    (["--workdir=README.md"], "README.md is a file, not a folder"),
]


def test_mistakes_are_explained(arguments, launch_all, tmp_path):
    results = launch_all(*([*arguments(), *flags] for flags, _ in MISTAKES))
    for (flags, message), result in zip(MISTAKES, results, strict=True):
        assert message in result.stderr, flags
        assert result.returncode == 1, flags
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()  # so the corrected command can start


def test_help_shows_the_flags_that_programs_share(launch_all):
    programs = ("build_data", "demo", "evaluate", "figures", "show_data")
    results = launch_all(*([f"{program}.py", "--help"] for program in programs))
    for program, result in zip(programs, results, strict=True):
        assert "--data_dir" in result.stdout, program
        assert "--mnist_dir" in result.stdout
        assert "--[no]compilation_cache" in result.stdout
        assert ("--checkpoint" in result.stdout) == (program in ("demo", "evaluate", "figures"))
