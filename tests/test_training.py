"""The training program, end to end, and what it does when things go wrong."""

import importlib
import json
import pathlib
import signal
import socket
import time

import jax
import numpy as np
import optax
import pytest
from conftest import SMALL

import datasets
from lavae_jax import checkpoints, schedules, tasks, training

CONFIGS = ["mnist1k", "mnist10k", "dsprites"]
CONFIGS += [f"baseline_{name}" for name in CONFIGS]


def get_config(name, recipe="paper"):
    return importlib.import_module(f"configs.{name}").get_config(recipe)


# --- settings ----------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("recipe", ["paper", "cpu", "tiny"])
def test_every_config_makes_a_task(name, recipe):
    config = get_config(name, recipe)
    assert config.name == name
    assert config.recipe == recipe
    state = jax.eval_shape(lambda: training.init_state(tasks.make(config), jax.random.key(0)))
    assert state.params


def test_an_unknown_recipe_is_refused():
    with pytest.raises(ValueError, match="no recipe 'gpu'; there are paper, cpu, tiny"):
        get_config("mnist1k", "gpu")


@pytest.mark.parametrize(
    ("name", "rate"), [("mnist1k", 1e-4), ("mnist10k", 1e-4), ("dsprites", 5e-4)]
)
def test_the_paper_s_numbers(name, rate):
    config = get_config(name)
    assert config.batch_size == 64
    assert config.model.max_objects == 10
    assert config.model.latent_size == 32
    assert config.model.gamma == config.model.threshold == 4
    assert config.model.sprite_size == (21 if name == "dsprites" else 17)
    location = schedules.location_learning_rate(config.optimizer)
    np.testing.assert_allclose([location(0), location(50_000)], [rate, rate / 10], rtol=1e-5)
    np.testing.assert_allclose(location(100_000), rate / 100, rtol=1e-5)
    assert tasks.make(config).learning_rates["rest"](70_000) == 1e-3


def test_schedules_are_the_paper_s_at_their_ends_and_middles():
    config = get_config("mnist1k")
    temperature = schedules.temperature(config.temperature)
    np.testing.assert_allclose(
        [temperature(t) for t in (0, 50_000, 100_000, 200_000)],
        [0.5, np.sqrt(0.5 * 0.02), 0.02, 0.02],
        rtol=1e-5,
    )
    weight = schedules.auxiliary_weight(config.warmup)
    np.testing.assert_allclose(
        [weight(t) for t in (0, 29_999, 45_000, 60_000, 99_999)], [1, 1, 0.5, 0, 0], atol=1e-6
    )
    force_one = schedules.force_one(config.warmup)
    np.testing.assert_allclose(
        [force_one(t) for t in (0, 29_999, 45_000, 60_000, 99_999)],
        [1, 1, 0.55, 0.1, 0.1],
        rtol=1e-5,
    )
    beta = schedules.beta(get_config("baseline_mnist1k").beta)
    np.testing.assert_allclose([beta(t) for t in (0, 5e4, 1e5, 2e5)], [0, 0.5, 1, 1])


def test_the_location_network_alone_has_the_slower_rate():
    task = tasks.make(get_config("mnist1k", "tiny"))
    params = {
        "lavae": {
            "location": {"k": np.ones(1)},
            "appearance": {"k": np.ones(1)},
            "count": np.ones(1),
        },
        "auxiliary": {"encoder": {"k": np.ones(1)}},
    }
    optimizer = training.make_optimizer(task)
    updates, _ = optimizer.update(
        jax.tree.map(np.ones_like, params), optimizer.init(params), params
    )
    assert optax.global_norm(updates["lavae"]["location"]) == pytest.approx(1e-4, rel=1e-3)
    for part in (updates["lavae"]["appearance"], updates["lavae"]["count"], updates["auxiliary"]):
        assert optax.global_norm(part) == pytest.approx(1e-3, rel=1e-3)


def test_durations_read_well():
    assert training.duration(59.6) == "0:01:00"
    assert training.duration(1_220_000) == "14 days 2:53:20"


# --- runs --------------------------------------------------------------------


@pytest.fixture
def arguments(data_dir, tmp_path):
    """Flags of a short run in a folder of its own."""

    def make(name="mnist1k", steps=4, workdir="run", warmup=False, recipe="tiny", **fields):
        joint = recipe == "tiny" and not warmup
        without = {"warmup.steps": 0, "warmup.anneal_steps": 0} if joint else {}
        defaults = {
            **without,
            "dataset.data_dir": data_dir,
            "num_train_steps": steps,
            "log_every_steps": 1,
            "eval_every_steps": 0,
            "dataset.held_out": 20,
            **fields,
        }
        flags = [f"--config.{field}={value}" for field, value in defaults.items()]
        return [
            "train.py",
            f"--config=configs/{name}.py:{recipe}",
            f"--workdir={tmp_path / workdir}",
            *flags,
        ]

    return make


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(pathlib.Path(__file__).parents[1])


def metrics(workdir, name="loss"):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


def newest(workdir):
    return checkpoints.load_newest(workdir / "checkpoints")


def test_the_tiny_data_set_is_the_one_that_tests_build():
    overrides = get_config("mnist1k", "tiny").dataset.overrides
    assert datasets.parse_overrides(overrides) == SMALL


@pytest.mark.parametrize("name", ["mnist1k", "dsprites", "baseline_mnist1k"])
def test_a_run_trains_evaluates_and_leaves_its_files(name, arguments, launch, tmp_path):
    slow_beta = {"beta.steps": 1_000_000} if name.startswith("baseline") else {}
    fields = {"eval_every_steps": 6, **slow_beta}
    result = launch(*arguments(name, steps=12, warmup=True, **fields))
    assert result.returncode == 0, result.stderr
    run = tmp_path / "run"
    losses = metrics(run)
    assert list(losses) == list(range(1, 13))
    assert np.mean([losses[s] for s in (10, 11, 12)]) < 0.95 * np.mean(
        [losses[s] for s in (1, 2, 3)]
    )
    assert list(metrics(run, "held_out_neg_elbo")) == [6, 12]
    assert sorted(p.name for p in (run / "pictures").iterdir()) == [
        "step_00000006.png",
        "step_00000012.png",
    ]
    assert list((run / "events").iterdir())
    assert json.loads((run / "config.json").read_text())["name"] == name
    assert json.loads((run / "environment.json").read_text())["packages"]["jax"] == jax.__version__
    assert "images/s" in result.stdout
    assert " left" in result.stdout
    if name != "baseline_mnist1k":
        assert "held-out count" in result.stdout
    assert newest(run).step == 12


def test_stops_leave_no_trace(arguments, launch, tmp_path):
    """The same steps in one go and with stops between them: identical, bit for bit."""
    warmup = {"warmup.steps": 2, "warmup.anneal_steps": 3}
    assert launch(*arguments(steps=7, workdir="whole", **warmup)).returncode == 0
    for steps in (4, 7):  # in the annealing, then past it
        result = launch(*arguments(steps=steps, workdir="pieces", **warmup))
        assert result.returncode == 0, result.stderr
    whole, pieces = newest(tmp_path / "whole"), newest(tmp_path / "pieces")
    assert whole.step == pieces.step == 7
    assert whole.meta["data"] == pieces.meta["data"]
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, pieces.arrays[name], err_msg=name)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "pieces")


def test_stops_between_and_within_phases_leave_no_trace(arguments, launch, tmp_path):
    """The cpu recipe, all its networks, two steps a phase."""
    overrides = get_config("mnist1k", "tiny").dataset.overrides
    fields = {"recipe": "cpu", "dataset.overrides": overrides, "batch_size": 4}
    fields |= {"warmup.auxiliary.steps": 2, "warmup.peaks.steps": 2}
    result = launch(*arguments(steps=6, workdir="whole", **fields))
    assert result.returncode == 0, result.stderr
    for phase in ("auxiliary", "peaks", "appearance"):
        assert f"({phase})" in result.stdout
    *_, before_the_last, last = (line for line in result.stdout.splitlines() if " left" in line)
    assert "(peaks)" in before_the_last
    assert before_the_last.endswith("left of this phase")
    assert last.endswith(" left")
    for steps in (2, 3, 6):
        result = launch(*arguments(steps=steps, workdir="pieces", **fields))
        assert result.returncode == 0, result.stderr
    whole, pieces = newest(tmp_path / "whole"), newest(tmp_path / "pieces")
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, pieces.arrays[name], err_msg=name)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "pieces")
    assert pieces.meta["seconds"] > 0


def assert_same_training(one, other):
    """Metrics of every step, and the whole update of the parameters."""
    for name in ("loss", "neg_elbo", "kl_location", "gradient_norm_lavae", "auxiliary_neg_elbo"):
        ours, theirs = metrics(one, name), metrics(other, name)
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-3)
    ours, theirs = newest(one).arrays, newest(other).arrays
    for prefix in ("state.params.", "state.batch_stats."):
        names = [n for n in ours if n.startswith(prefix)]
        error = sum(np.sum((ours[n] - theirs[n]) ** 2.0) for n in names)
        assert error < 1e-6 * sum(np.sum(ours[n] ** 2.0) for n in names)


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def processes_of(start, arguments, **environment):
    where = f"--coordinator=127.0.0.1:{free_port()}"
    return [
        start(*arguments, where, "--num_processes=2", f"--process_id={p}", **environment)
        for p in range(2)
    ]


def test_devices_and_processes_make_no_difference(arguments, launch, start, tmp_path):
    room = {"budget.slots": 10, "budget.places": 10.0, "warmup": True}
    assert launch(*arguments(steps=3, workdir="one", **room)).returncode == 0
    four = launch(*arguments(steps=3, workdir="four", **room), JAX_NUM_CPU_DEVICES="4")
    assert four.returncode == 0, four.stderr
    assert_same_training(tmp_path / "one", tmp_path / "four")
    processes = processes_of(
        start, arguments(steps=3, workdir="two", **room), JAX_NUM_CPU_DEVICES="2"
    )
    for process in processes:
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
    assert_same_training(tmp_path / "one", tmp_path / "two")


# --- faults ------------------------------------------------------------------


def wait_for(condition, process, seconds=120):
    deadline = time.time() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.time() < deadline, "it took too long"
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(number, arguments, start, tmp_path):
    flags = arguments(steps=100_000, checkpoint_every_steps=100_000)
    process = start(*flags)
    run = tmp_path / "run"
    wait_for(lambda: (run / "metrics.jsonl").exists() and len(metrics(run)) > 2, process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    assert "to go on:" in stdout
    assert f"--workdir={run}" in stdout.splitlines()[-1]
    assert newest(run).step == max(metrics(run))


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
    assert f"going on from step {whole.step}" in result.stdout
    assert newest(tmp_path / "run").step == whole.step + 2


def test_a_damaged_checkpoint_is_skipped(arguments, launch, tmp_path):
    assert launch(*arguments(steps=2, checkpoint_every_steps=1)).returncode == 0
    (tmp_path / "run" / "checkpoints" / "2" / "meta.json").write_text("{}")
    result = launch(*arguments(steps=3))
    assert result.returncode == 0, result.stderr
    assert "an earlier checkpoint is used" in result.stderr
    assert "going on from step 1" in result.stdout


def test_another_config_or_end_in_the_same_folder_is_refused(arguments, launch, tmp_path):
    assert launch(*arguments(steps=2)).returncode == 0
    result = launch(*arguments(steps=3, **{"model.latent_size": 9, "batch_size": 8}))
    assert result.returncode == 1
    assert "batch_size: 16 there, 8 here" in result.stderr
    assert "model.latent_size: 8 there, 9 here" in result.stderr
    assert "Traceback" not in result.stderr
    result = launch(*arguments(steps=1))
    assert result.returncode == 1
    assert "is at step 2, past config.num_train_steps=1" in result.stderr
    assert newest(tmp_path / "run").step == 2
    assert json.loads((tmp_path / "run" / "config.json").read_text())["num_train_steps"] == 2


def test_a_loss_that_is_not_finite_ends_the_run(arguments, launch, tmp_path):
    fields = {"optimizer.learning_rate": 1e30, "checkpoint_every_steps": 1}
    result = launch(*arguments(steps=9, **fields))
    assert result.returncode == 1
    assert "not finite" in result.stderr
    assert "neg_elbo" in result.stderr
    last = newest(tmp_path / "run").step
    assert f"checkpoints/{last}" in result.stderr
    assert f"step {last + 1}:" in result.stderr
    assert all(np.isfinite(a).all() for a in newest(tmp_path / "run").arrays.values())


def test_a_full_disk_ends_the_run_with_a_message(arguments, launch, tmp_path):
    """A limit on the size of files stands in for the disk."""
    limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 40; exec \"$@\"", "-"]
    environment = {"JAX_COMPILATION_CACHE_DIR": ""}
    result = launch(*arguments(steps=2), prefix=limited, **environment)
    assert result.returncode == 1
    assert "the checkpoint of step 2 could not be written" in result.stderr
    assert "there is no earlier one" in result.stderr
    assert newest(tmp_path / "run") is None


def test_the_others_end_when_a_process_dies(arguments, start, tmp_path):
    processes = processes_of(start, arguments(steps=100_000))
    run = tmp_path / "run"
    wait_for(lambda: (run / "metrics.jsonl").exists() and len(metrics(run)) > 2, processes[0])
    processes[1].kill()
    stdout, stderr = processes[0].communicate(timeout=60)
    assert processes[0].returncode not in (0, None)
    assert "another process died" in stdout or "heartbeat" in stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.batch_sise=3"], "batch_sise"),
        (["--config.batch_size=many"], "batch_size"),
        (["--config.batch_size=0"], "batch_size=0"),
        (["--config.dataset.name=mnist"], "'mnist'"),
        (["--config.dataset.held_out=5000"], "held_out=5000"),
        (["--config.model.channels=3"], "channels=3"),
        (["--config.model.appearance.kind=foo"], "there are 'residual', 'window'"),
        (["--config.dataset.overrides=canvas"], "not canvas="),
        (["--coordinator=127.0.0.1:1"], "--num_processes and --process_id missing"),
        (["word"], "unexpected argument 'word'"),
    ],
)
def test_bad_flags_are_explained(arguments, launch, tmp_path, flags, message):
    result = launch(*arguments(), *flags)
    assert result.returncode != 0
    assert message in result.stderr
    assert not (tmp_path / "run").exists()  # so the corrected command can start
