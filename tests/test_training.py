"""The training loop, and what it does when things go wrong. (Programs: `test_runs`.)"""

import json
import os
import re
import signal
import subprocess
import types
from typing import NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SMALL
from micro import Drawn, metrics, newest, train
from micro import config as micro_config
from small_models import get_config

import datasets
from lavae_jax import checkpoints, diagnostics, inference, model, model_files
from lavae_jax.checkpoints import CheckpointError
from lavae_jax.recipes import common
from lavae_jax.training import (
    console,
    files,
    forecast,
    loop,
    mixture,
    phases,
    schedules,
    step,
    tasks,
)
from lavae_jax.training.files import WorkdirError
from lavae_jax.training.loop import TrainingError
from lavae_jax.training.signals import StopRequest

LAVAE_CONFIGS = ["mnist1k", "mnist10k", "dsprites"]
CONFIGS = LAVAE_CONFIGS + [f"baseline_{name}" for name in LAVAE_CONFIGS]
RECIPES = [(name, recipe) for name in CONFIGS for recipe in ("paper", "cpu", "tiny")]
LAVAE_RECIPES = ("mixture", "sleep", "joint", "thin", "described")
RECIPES += [(name, recipe) for name in LAVAE_CONFIGS for recipe in LAVAE_RECIPES]
RECIPES += [(f"baseline_{name}", "plain") for name in LAVAE_CONFIGS]
RECIPES += [("images", "sleep"), ("images", "grey")]
TWO_A_PHASE = {"recipe": "cpu", "warmup": (2, 2)}  # with steps=6


# --- settings ----------------------------------------------------------------


@pytest.mark.parametrize(("name", "recipe"), RECIPES)
def test_every_config_makes_a_task(name, recipe):
    config = get_config(name, recipe)
    assert config.name == name
    assert config.recipe == recipe
    task = tasks.make(config)
    state = jax.eval_shape(lambda: step.init_state(task, jax.random.key(0)))
    assert state.params
    trained = {part for phase in task.phases for part in phase.learning_rates}
    assert trained == state.opt_state.keys()
    networks = {"encoder", "decoder"} if config.kind == "baseline" else {"auxiliary", "lavae"}
    assert set(state.params) == networks
    idle = {"auxiliary"} if recipe == "grey" else set()
    assert {part.split(".")[0] for part in trained} == networks - idle
    saved = {"mixture": {"mixture"}, "sleep": {"appearance"}, "grey": {"portraits"}}
    assert set(state.saved) == saved.get(recipe, set())


def test_an_unknown_recipe_is_refused():
    message = (
        "no recipe 'gpu'; expected one of paper, described, thin, cpu, mixture, sleep, joint, tiny"
    )
    with pytest.raises(ValueError, match=message):
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
    task = tasks.make(config)
    assert task.num_steps == 100_000
    for phase in task.phases:
        location, start = phase.learning_rates["lavae.location"], task.start_of(phase)
        rates = [location(step - start) for step in (0, 50_000, 100_000)]
        np.testing.assert_allclose(rates, [rate, rate / 10, rate / 100], rtol=1e-5)
        for part in ("lavae.appearance", "lavae.decoder", "lavae.count_logits"):
            assert phase.learning_rates[part](70_000 - start) == 1e-3


def test_schedules_are_the_paper_s_at_their_ends_and_middles():
    curriculum = get_config("mnist1k").curriculum
    temperature = schedules.temperature(curriculum.temperature)
    np.testing.assert_allclose(
        [temperature(t) for t in (0, 50_000, 100_000, 200_000)],
        [0.5, np.sqrt(0.5 * 0.02), 0.02, 0.02],
        rtol=1e-5,
    )
    weight = schedules.auxiliary_weight(curriculum.warmup)
    np.testing.assert_allclose(
        [weight(t) for t in (0, 29_999, 45_000, 60_000, 99_999)], [1, 1, 0.5, 0, 0], atol=1e-6
    )
    force_one = schedules.force_one(curriculum.warmup)
    np.testing.assert_allclose(
        [force_one(t) for t in (0, 29_999, 45_000, 60_000, 99_999)],
        [1, 1, 0.55, 0.1, 0.1],
        rtol=1e-5,
    )
    beta = schedules.beta(get_config("baseline_mnist1k", "paper").curriculum.beta)
    np.testing.assert_allclose([beta(t) for t in (0, 5e4, 1e5, 2e5)], [0, 0.5, 1, 1])


def test_a_step_is_adamax_s_with_the_rate_of_each_part():
    """The first step of Adamax is the rate times the gradient's sign."""
    task = tasks.make(micro_config())
    phase = phases.Phase(
        "elbo",
        1,
        lambda module, x, keys, step: (
            sum(jnp.sum(p) for p in jax.tree.leaves(module.variables["params"])),
            {},
        ),
        {"lavae.location": lambda step: 1e-4, "lavae.count_logits": lambda step: 1e-3},
    )
    state = step.init_state(task, jax.random.key(0))
    before = jax.tree.map(np.asarray, state.params)
    run = step.make_train_step(task, phase, jax.random.key(1))
    batch = {"image": np.zeros((1, 2, 24, 24, 1))}
    state, values = run(step.replicate(state), batch, np.zeros(1, np.int32))
    after = step.unreplicate(state).params
    change = jax.tree.map(lambda a, b: np.unique(np.round(a - b, 6)), before, after)
    frozen = change.pop("auxiliary"), change["lavae"].pop("appearance")
    frozen += (change["lavae"].pop("decoder"),)
    assert all(leaf.tolist() == [0] for leaf in jax.tree.leaves(frozen))
    np.testing.assert_allclose(change["lavae"]["count_logits"], [1e-3], rtol=1e-3)
    for leaf in jax.tree.leaves(change["lavae"]["location"]):
        np.testing.assert_allclose(leaf, 1e-4, rtol=0.02)
    # Each gradient is 1.
    norms = {name: v[0] for name, v in values.items() if name.startswith("gradient_norm")}
    assert norms == {
        f"gradient_norm_lavae.{part}": pytest.approx(
            np.sqrt(sum(leaf.size for leaf in jax.tree.leaves(before["lavae"][part])))
        )
        for part in ("location", "count_logits")
    }


@pytest.mark.parametrize("pixel", [0.0, np.nan])
def test_a_step_that_is_not_finite_leaves_the_state_as_it_was(pixel):
    task = tasks.make(micro_config())
    state = step.init_state(task, jax.random.key(0))
    before = jax.tree.map(np.array, state)
    run = step.make_train_step(task, task.phases[0], jax.random.key(1))
    batch = {"image": np.full((1, 2, 24, 24, 1), pixel, np.float32)}
    state, values = run(step.replicate(state), batch, np.zeros(1, np.int32))
    after = step.unreplicate(state)
    assert np.isfinite(values["loss"][0]) == np.isfinite(pixel)
    assert after.step == 1
    same = jax.tree.map(np.array_equal, before, after._replace(step=before.step))
    assert all(jax.tree.leaves(same)) == np.isnan(pixel)


class Toy(flax.linen.Module):
    """Parameters of two parts and a batch statistic."""

    def setup(self):
        four = flax.linen.initializers.constant(4.0)
        self.one, self.other = self.param("one", four, (3,)), self.param("other", four, (3,))
        self.seen = self.variable("batch_stats", "seen", jnp.zeros, ())

    def __call__(self):
        pass


def toy_task(curriculum=(), evaluate=None):
    return phases.Task(lambda train, axis_name: Toy(), curriculum, evaluate, None)


@pytest.mark.parametrize(("pixel", "changes"), [(1.0, True), (0.0, False)])
def test_a_nan_gradient_of_a_finite_loss_leaves_the_state_unchanged(pixel, changes):
    """The root's slope at 0 is infinite, and times 0 it is nan. The other part's gradient is 1."""

    def loss(module, x, keys, step):
        module.seen.value = module.seen.value + 1
        return jnp.sqrt(jnp.sum(x[:, 0, 0, 0] * module.one)) + module.other.sum(), {}

    rates = {part: lambda step: 0.1 for part in ("one", "other")}
    task = toy_task((phases.Phase("root", 1, loss, rates),))
    state = step.init_state(task, jax.random.key(0))
    before = jax.tree.map(np.array, state)
    run = step.make_train_step(task, task.phases[0], jax.random.key(1))
    batch = {"image": np.full((1, 1, 1, 1, 1), pixel, np.float32)}
    state, values = run(step.replicate(state), batch, np.zeros(1, np.int32))
    after = step.unreplicate(state)
    assert values["loss"] == pytest.approx(12 + np.sqrt(12 * pixel))
    assert np.isfinite(values["gradient_norm_one"]) == changes
    assert values["gradient_norm_other"] == pytest.approx(np.sqrt(3))
    assert after.step == 1
    for name in ("params", "batch_stats", "opt_state"):
        pairs = zip(*(jax.tree.leaves(getattr(s, name)) for s in (before, after)), strict=True)
        assert [np.array_equal(*pair) for pair in pairs].count(changes) == 0, name


def test_an_evaluation_sums_only_images_that_are_valid_and_have_the_metric():
    """The last two of six images fill up the batch, one with a metric that is not finite."""
    has_it = np.array([True, False, True, True, True, False])

    def evaluate(module, x, count, keys):
        brightness = x.sum((1, 2, 3))
        return {"all": brightness, "some": diagnostics.Masked(brightness, has_it)}

    run = step.make_eval_step(toy_task(evaluate=evaluate), jax.random.key(0))
    images = np.array([1, 2, 4, 8, 16, np.nan], np.float32).reshape(1, 6, 1, 1, 1)
    batch = {"image": images, "valid": np.arange(6)[None] < 4}
    sums = run({}, {}, batch, np.zeros(1, np.int32))
    found = {name: tuple(float(v[0]) for v in values) for name, values in sums.items()}
    assert found == {"all": (15.0, 4.0), "some": (13.0, 3.0)}


def test_durations_are_formatted_for_reading():
    assert console.duration(59.6) == "0:01:00"
    assert console.duration(1_220_000) == "14 days 2:53:20"


@pytest.mark.parametrize(
    ("phase_end", "later", "left"),
    [
        (50, None, "0:00:40 left"),  # the run ends within the phase, after 30 steps
        (20, None, "0:00:20 left of this phase"),
        (20, 100.0, "0:02:00 left"),
    ],
)
def test_the_time_left_is_that_of_the_steps_until_the_end(phase_end, later, left):
    clock = types.SimpleNamespace(images_per_second=lambda: 8.0, seconds_a_step=lambda: 2.0)
    said = console.progress(10, 30, "elbo", phase_end, {"loss": 1.0}, {}, clock, later)
    assert said.endswith(f"  {left}")


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_default_recipe_follows_the_devices(name, platform, monkeypatch):
    recipe = "cpu" if platform == "cpu" else "paper"
    device = types.SimpleNamespace(platform=platform)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.setattr(common, "ACCELERATOR_RECIPE", "paper")
    assert get_config(name, common.BY_DEVICE).recipe == recipe


def test_a_command_that_names_no_recipe_gets_one_that_has_been_trained(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(platform="tpu")])
    assert get_config("mnist1k", common.BY_DEVICE).recipe == "cpu"


def test_the_recipe_paper_differs_from_the_letter_in_what_its_training_needs():
    paper, letter = (
        flax.traverse_util.flatten_dict(get_config("mnist1k", recipe).to_dict(), sep=".")
        for recipe in ("paper", "described")
    )
    changed = {name for name in paper if paper[name] != letter.get(name)} - {"recipe"}
    names = (
        "gamma",
        "threshold",
        "peak_radius",
        "exclusion_radius",
        "activations",
        "packed_pixels",
    )
    assert changed == {f"model.{name}" for name in names} | {"eval_every_steps"}


def test_thin_is_paper_with_smaller_networks_and_shorter_schedules():
    paper, thin = (get_config("mnist1k", recipe) for recipe in ("paper", "thin"))
    for config in (paper, thin):
        curriculum, steps = config.curriculum, tasks.make(config).num_steps
        assert curriculum.warmup.steps == 2 * curriculum.warmup.anneal_steps < 0.8 * steps
        assert curriculum.temperature.steps == curriculum.location.decay_steps == steps
    same = ("gamma", "threshold", "peak_radius", "exclusion_radius", "support", "latent_size")
    for name in same:
        assert thin.model[name] == paper.model[name]
    for part in ("location", "appearance", "decoder"):
        assert thin.model[part].blocks == paper.model[part].blocks
    assert thin.model.location.space_to_depth == 1


def test_an_installed_package_has_no_revision_of_a_repository_around_it(tmp_path):
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert files._git_revision(site) is None


# --- forecasts ---------------------------------------------------------------


def test_a_forecast_adds_up_what_is_left():
    config = micro_config(warmup=(100, 200))
    task = tasks.make(config)
    left = forecast.phases_left(task, 50, 1_000)
    assert [(phase.name, steps) for phase, steps in left] == [("warmup", 250), ("elbo", 700)]
    assert [(p.name, n) for p, n in forecast.phases_left(task, 300, 1_000)] == [("elbo", 700)]
    assert forecast.evaluations_left(300, 0, 1_000) == 4  # after 300, 600, 900 and at the end
    assert forecast.evaluations_left(300, 250, 1_000) == 4
    assert forecast.evaluations_left(300, 300, 1_000) == 3
    assert forecast.evaluations_left(300, 1_000, 1_000) == 0
    assert forecast.evaluations_left(0, 0, 1_000) == 0
    made = forecast.Forecast(
        (forecast.PhaseForecast("a", 250, 0.1, 3.0), forecast.PhaseForecast("b", 10, 2.0, 0.0)), 7.0
    )
    assert made.seconds(evaluations=2) == pytest.approx(3 + 25 + 20 + 14)
    assert made.seconds(evaluations=0, after="a") == pytest.approx(20)


@pytest.mark.parametrize("recipe", ["tiny", "mixture", "sleep"])
def test_a_forecast_times_every_phase_and_changes_nothing(recipe, tmp_path, monkeypatch):
    config = micro_config(recipe=recipe, steps=8, warmup=(2, 2))
    without = train(config, tmp_path / "without")
    assert "will take" not in without
    monkeypatch.setattr(loop, "FORECAST_FROM", 1)
    monkeypatch.setattr(forecast, "TIMED_SECONDS", 0)
    said = train(config, tmp_path / "with")
    (line,) = (line for line in said.splitlines() if line.startswith("the run will take about"))
    for phase in tasks.make(config).phases:
        if phase.steps:
            assert f"{phase.name} " in line
    assert_same_arrays(tmp_path / "without", tmp_path / "with")


# --- runs --------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def assert_same_arrays(one, other):
    one, other = newest(one), newest(other)
    assert one.step == other.step
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)


@pytest.mark.parametrize("name", ["mnist1k", "dsprites", "baseline_mnist1k"])
def test_a_run_trains_evaluates_and_leaves_its_files(name, run):
    fast = {"optimizer.learning_rate": 1e-2, "batch_size": 16}
    if name.startswith("baseline"):  # the plain one, which starts far from the mean image
        fast |= {"curriculum.beta.steps": 1_000_000}
    config = micro_config(name, steps=12, warmup=(30, 20), eval_every_steps=6, **fast)
    if name.startswith("baseline"):
        config.model = {"channels": 1, "width": 8, "latents": 16, "space_to_depth": 8}
    said = train(config, run)
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
    assert "images/s" in said
    assert " left" in said
    first = said.splitlines()[0]
    assert first == f"{name}, recipe tiny, in {run}"
    assert re.search(r"compiling the step of phase .*\ncompiled in \d", said)
    if name != "baseline_mnist1k":
        assert "held-out count" in said
    assert newest(run).step == 12
    last = said.splitlines()[-4:]
    assert last[0].startswith("finished after step 12, ")
    paths = [line.split()[1] for line in last[1:]]
    assert [os.path.relpath(path, run) for path in paths] == [
        "checkpoints/12",
        "metrics.jsonl",
        "pictures/step_00000012.png",
    ]
    assert all(os.path.exists(path) for path in paths)


def test_stops_do_not_change_results(tmp_path):
    """The same steps in one go and with stops between them: identical, bit for bit."""
    warmup = {"warmup": (2, 3)}
    train(micro_config(steps=7, **warmup), tmp_path / "whole")
    for steps in (4, 7):  # in the annealing, then past it
        train(micro_config(steps=steps, **warmup), tmp_path / "pieces")
    assert_same_arrays(tmp_path / "whole", tmp_path / "pieces")
    assert newest(tmp_path / "whole").meta["data"] == newest(tmp_path / "pieces").meta["data"]
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "pieces")


def test_a_checkpoint_has_the_scores_of_its_own_step_or_none(run):
    train(
        micro_config(steps=5, eval_every_steps=2, checkpoint_every_steps=1, keep_checkpoints=9), run
    )
    folders = {int(path.name): path for path in (run / "checkpoints").iterdir()}
    saved = {number: checkpoints.load(path).meta for number, path in folders.items()}
    scores = {n: meta[files.BEST] for n, meta in saved.items() if files.BEST in meta}
    assert scores == metrics(run, "held_out_neg_elbo")
    assert sorted(scores) == [2, 4, 5]
    assert sorted(n for n, meta in saved.items() if "held_out" in meta) == [2, 4, 5]


def test_stops_between_and_within_phases_do_not_change_results(tmp_path):
    said = train(micro_config(steps=6, **TWO_A_PHASE), tmp_path / "whole")
    for phase in ("auxiliary", "peaks", "appearance"):
        assert f"({phase})" in said
    *_, before_the_last, last = (line for line in said.splitlines() if " left" in line)
    assert "(peaks)" in before_the_last
    assert before_the_last.endswith("left of this phase")
    assert last.endswith(" left")
    for steps in (2, 3, 6):
        train(micro_config(steps=steps, **TWO_A_PHASE), tmp_path / "pieces")
    assert_same_arrays(tmp_path / "whole", tmp_path / "pieces")
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "pieces")
    assert newest(tmp_path / "pieces").meta["seconds"] > 0


def test_stops_in_the_phase_sleep_do_not_change_results(tmp_path):
    """In the phases sleep, appearance and overlap, and where the location network is calibrated."""
    fields = {"recipe": "sleep", "warmup": (2, 2)}
    said = train(micro_config(steps=8, **fields), tmp_path / "whole")
    for phase in ("sleep", "appearance", "overlap"):
        assert said.count(f"preparing phase {phase}") == 1
    for steps in (3, 4, 5, 7, 8):
        train(micro_config(steps=steps, **fields), tmp_path / "pieces")
    assert_same_arrays(tmp_path / "whole", tmp_path / "pieces")
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "pieces")
    scale, shift = newest(tmp_path / "whole").arrays["state.saved.appearance.calibration"]
    assert scale > 0
    assert np.isfinite(shift)


def test_the_cache_makes_no_difference(tmp_path, monkeypatch):
    config = micro_config(steps=6, **TWO_A_PHASE)
    train(config, tmp_path / "cached")
    without = tasks.make(config)
    assert [bool(phase.prepare) for phase in without.phases] == [False, False, True]
    uncached = tuple(phase._replace(prepare=None) for phase in without.phases)
    monkeypatch.setattr(tasks, "make", lambda config: without._replace(phases=uncached))
    train(config, tmp_path / "computed")
    ours, theirs = newest(tmp_path / "cached").arrays, newest(tmp_path / "computed").arrays
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_crops_come_before_whole_images(tmp_path):
    fields = {"name": "baseline_mnist1k"}
    fields |= {"curriculum.crops.side": 16, "curriculum.crops.steps": 2}
    said = train(micro_config(steps=3, **fields), tmp_path)
    assert [phase in said for phase in ("step 2/3 (crops)", "step 3/3 (elbo)")] == [True, True]
    assert metrics(tmp_path, "neg_elbo").keys() == {1, 2, 3}


# --- the mixture -------------------------------------------------------------


class InBatches(NamedTuple):
    """Training images in batches of one size, the last one padded."""

    images: np.ndarray
    size: int
    varies: bool = False

    def __len__(self):
        return len(self.images)

    def batches(self):
        padded = np.pad(self.images, ((0, -len(self) % self.size), (0, 0), (0, 0), (0, 0)))
        return iter(padded.reshape(-1, self.size, *self.images.shape[1:]))


def test_stops_around_the_start_of_the_mixture_do_not_change_results(tmp_path):
    """Steps 1 and 2 are of the phase before, 3 to 6 of the mixture's."""
    fields = {"recipe": "mixture", "eval_every_steps": 2}
    said = train(micro_config(steps=6, **fields), tmp_path / "whole")
    assert said.count("preparing phase mixture") == 1
    for steps in (1, 2, 3, 5, 6):
        said = train(micro_config(steps=steps, **fields), tmp_path / "pieces")
        assert said.count("preparing phase mixture") == (steps > 2)
    assert_same_arrays(tmp_path / "whole", tmp_path / "pieces")
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "pieces")
    assert metrics(tmp_path / "whole", "components").keys() == {3, 4, 5, 6}


def test_until_its_phase_a_run_with_a_mixture_is_one_without(tmp_path):
    """Bit for bit, and what it has of a mixture is N(0, I)."""
    train(micro_config(steps=6, **TWO_A_PHASE | {"recipe": "mixture"}), tmp_path / "mixture")
    train(micro_config(steps=6, **TWO_A_PHASE), tmp_path / "cpu")
    ours, theirs = newest(tmp_path / "mixture").arrays, newest(tmp_path / "cpu").arrays
    added = ours.keys() - theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(array, ours[name], err_msg=name)
    assert {name.partition(".lavae.prior")[0] for name in added} == {
        "state.params",
        "state.opt_state",
        "state.saved.mixture.sketches",
    }
    assert not any(ours[name].any() for name in added)
    assert metrics(tmp_path / "mixture") == metrics(tmp_path / "cpu")


def test_the_mixture_starts_at_encodings_of_different_training_objects(tmp_path):
    config = micro_config(steps=2, recipe="mixture", **{"model.prior.components": 9})
    train(config, tmp_path)
    task = tasks.make(config)
    like = jax.eval_shape(lambda: {"state": step.init_state(task, jax.random.key(0))})
    arrays = {name: a for name, a in newest(tmp_path).arrays.items() if name != "key"}
    state = checkpoints.unflatten(arrays, like)["state"]
    images = Drawn(config, 0, 20).read(range(20))["image"]
    images[3] = images[0]
    with pytest.warns(UserWarning, match="out of reach"):  # after two steps
        scene = model_files.load(tmp_path).infer(images)
    there = np.asarray(scene.present)
    windows = [
        np.pad(images[i], ((4, 4), (4, 4), (0, 0)))[row : row + 9, column : column + 9].tobytes()
        for i, slot in zip(*np.nonzero(there), strict=True)
        for row, column in [np.asarray(scene.location)[i, slot]]
    ]
    candidates = windows[: 4 * 9]
    first = [i for i, window in enumerate(candidates) if window not in candidates[:i]]
    again = [i for i in range(len(candidates)) if i not in first]
    assert len(first) > 1
    assert again[0] < 9  # so that order matters
    encodings = np.asarray(scene.appearance)[there][(first + again)[:9]]
    module = task.module((), None)
    prepared = task.phases[-1].prepare(module, step.variables_of(state), InBatches(images, 7), None)
    components = prepared.params["lavae.prior"]
    variance = np.maximum(1 - encodings.var(0), 0.03)
    mean, log_variance = components.components
    np.testing.assert_allclose(mean.T, encodings, rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_variance).T, [variance] * 9, rtol=1e-5)
    assert not components.logits.any()


def test_the_components_near_an_object_start_at_similar_objects():
    config = micro_config(steps=2, recipe="mixture")
    task = tasks.make(config)
    phase, module = task.phases[-1], task.module((), None)
    state = step.init_state(task, jax.random.key(0))
    variables = step.variables_of(state)
    images = Drawn(config, 0, 20).read(range(20))["image"]
    prepared = phase.prepare(module, variables, InBatches(images, 20), None)
    found = prepared.cache["located"]
    is_object = np.arange(found.near.shape[1]) < found.count[:, None]
    near = found.near[is_object]
    sketch = np.asarray(model.compiled(mixture._find, module)(variables, images).sketch)[is_object]
    assert near.shape == (found.count.sum(), 5)
    scene = jax.jit(model.bind(lambda m, x: inference.infer(m.lavae, x), module))(variables, images)
    encodings = np.asarray(scene.appearance)[np.asarray(scene.present)]
    means = prepared.params["lavae.prior"].components.mean.T
    for k, mean in enumerate(means):  # each has the objects that look the same as its own
        (own,) = np.nonzero(np.isclose(encodings, mean, rtol=1e-4).all(1))
        alike = (sketch == sketch[own[0]]).all(1)
        assert set(near[alike, 0]) <= {j for j in range(5) if np.allclose(means[j], mean, 1e-4)}, k


def test_each_reading_of_images_that_vary_has_draws_of_its_own():
    class Varying:
        varies = True

        def __len__(self):
            return 5

        def read(self, index, draws=None):
            draws = index if draws is None else draws
            return {"image": np.asarray(draws, np.float32).reshape(-1, 1, 1, 1)}

    images = loop.AllImages(Varying(), 4, print, StopRequest())
    readings = [np.concatenate(list(images.batches(k))).ravel() for k in (0, 1, 1)]
    np.testing.assert_array_equal(readings[0][:5], np.arange(5))
    np.testing.assert_array_equal(readings[1][:5], np.arange(5, 10))
    np.testing.assert_array_equal(readings[1], readings[2])


def test_objects_of_images_that_fill_up_a_batch_do_not_count_again():
    config = micro_config(steps=2, recipe="mixture", **{"model.prior.components": 99})
    task = tasks.make(config)
    module = task.module((), None)
    variables = step.variables_of(step.init_state(task, jax.random.key(0)))
    images = Drawn(config, 0, 20).read(range(20))["image"]
    find = jax.jit(model.bind(lambda m, x: inference.infer_locations(m.lavae, x), module))
    number = find(variables, images).count.sum()
    assert find(variables, np.zeros_like(images)).count.all()  # found even in an empty image
    with pytest.raises(ValueError, match=f"=99, but only {number} objects are found"):
        task.phases[-1].prepare(module, variables, InBatches(images, 7), None)


def test_the_mixture_s_phase_trains_everything_but_the_location_network(tmp_path):
    config = micro_config(steps=4, recipe="mixture", checkpoint_every_steps=1)
    train(config, tmp_path)
    before, after = (checkpoints.load(tmp_path / "checkpoints" / s).arrays for s in "34")
    same = {n for n in before if np.array_equal(before[n], after[n])}
    for part in ("appearance", "decoder", "count_logits", "prior"):
        assert any(n not in same for n in before if n.startswith(f"state.params.lavae.{part}"))
    frozen = ("lavae.location", "auxiliary")
    assert same >= {n for n in before if any(part in n for part in frozen)}


def test_a_mixture_can_start_from_a_model_of_the_recipe_cpu(tmp_path):
    """With a learning rate of 0, it has that model's networks after its steps, too."""
    before = {"warmup": (1, 1)}
    train(micro_config(recipe="cpu", steps=4, **before), tmp_path / "cpu")
    model_files.export(tmp_path / "cpu", tmp_path / "small", "")
    mixture = {**before, "recipe": "mixture", "curriculum.mixture.learning_rate": 0.0}
    for name, tolerance in (("cpu", 0.0), ("small", 1e-3)):  # half precision
        config = micro_config(steps=6, **mixture, start_from=str(tmp_path / name))
        assert "resuming after step 4" in train(config, tmp_path / f"from_{name}")
        ours, theirs = newest(tmp_path / f"from_{name}"), newest(tmp_path / "cpu")
        assert ours.meta["data"]["next_index"] == theirs.meta["data"]["next_index"] + 2
        assert ours.meta["seconds"] > theirs.meta["seconds"]
        for array in theirs.arrays:
            if array.startswith(("state.params.lavae.", "state.batch_stats.lavae.")):
                np.testing.assert_allclose(
                    ours.arrays[array], theirs.arrays[array], rtol=tolerance, atol=tolerance / 1e2
                )
        assert ours.arrays["state.params.lavae.prior.features"].any()


def test_a_model_that_a_run_cannot_start_from_is_refused(run):
    other = micro_config(recipe="mixture", steps=6, start_from="mnist1k", seed=1)
    with pytest.raises(TrainingError, match="differs from this run in more") as error:
        train(other, run)
    assert "latent_size: 32 in the stored config, 2 in this one" in str(error.value)
    assert "seed: 0 in the stored config, 1 in this one" in str(error.value)
    short = get_config("mnist1k", "mixture")
    short.start_from, short.curriculum.appearance.steps = "mnist1k", 9
    message = "60,000 steps, but the phases of this run end after 1,200, 6,000, 6,009"
    with pytest.raises(TrainingError, match=message):
        train(short, run)
    same = get_config("mnist1k", "cpu")  # as the model was trained, so nothing is left to train
    same.start_from = "mnist1k"
    with pytest.raises(TrainingError, match=r"60,000 steps.* end after 1,200, 6,000, 60,000"):
        train(same, run)


def test_a_mixture_of_more_components_than_objects_is_refused(tmp_path):
    fields = {"model.prior.components": 9_999, "checkpoint_every_steps": 1}
    config = micro_config(steps=3, recipe="mixture", **fields)
    with pytest.raises(TrainingError, match=r"components=9999, but only \d+ objects are found"):
        train(config, tmp_path)
    assert newest(tmp_path).step == 2


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("mixture", {"model.prior.kind": "normal"}, "components=5: a mixture has at least 1"),
        ("mixture", {"model.prior.components": 0}, "components=0: a mixture has at least 1"),
        ("mixture", {"curriculum.phases": ("peaks",)}, "prior.kind='mixture', but config.curric"),
    ],
)
def test_a_mixture_without_what_it_needs_is_refused(recipe, changes, message):
    with pytest.raises(ValueError, match=message):
        tasks.make(micro_config(recipe=recipe, **changes))


# --- what phases train -------------------------------------------------------


def test_a_phase_leaves_what_it_does_not_train_as_it_was(tmp_path):
    fields = {**TWO_A_PHASE, "checkpoint_every_steps": 1, "keep_checkpoints": 9}
    train(micro_config(steps=6, **fields), tmp_path)
    states = [checkpoints.load(tmp_path / "checkpoints" / str(s)).arrays for s in range(2, 7)]

    def moved(one, other):
        """Parts of which a parameter, a batch statistic or a moment changed."""
        names = [n for n in one if not np.array_equal(one[n], other[n]) and n != "state.step"]
        parts = (r"auxiliary", r"lavae\.location", r"lavae\.appearance", r"lavae\.decoder")
        found = {re.search("|".join(parts) + r"|lavae\.count_logits", n).group() for n in names}
        kinds = {n.split(".")[1] for n in names}
        return found, kinds

    appearance = {"lavae.appearance", "lavae.decoder", "lavae.count_logits"}
    for before, after, parts, stats in (
        (0, 1, {"lavae.location"}, True),
        (1, 2, {"lavae.location"}, True),
        (2, 3, appearance, False),  # dense networks: no batch statistics of their own
        (3, 4, appearance, False),
    ):
        found, kinds = moved(states[before], states[after])
        assert found == parts
        assert ("batch_stats" in kinds) == stats
        assert {"params", "opt_state"} <= kinds


# --- faults ------------------------------------------------------------------


def test_a_damaged_checkpoint_is_skipped(run, caplog):
    train(micro_config(steps=2, checkpoint_every_steps=1), run)
    (run / "checkpoints" / "2" / "meta.json").write_text("{}")
    said = train(micro_config(steps=3), run)
    assert "an earlier checkpoint is used" in caplog.text
    assert "resuming after step 1" in said


def test_a_run_never_starts_anew_over_checkpoints_that_it_cannot_read(run):
    train(micro_config(steps=2, checkpoint_every_steps=1), run)
    before = (run / "metrics.jsonl").read_text()
    for path in (run / "checkpoints").iterdir():
        (path / "meta.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"only 2 damaged.*move them away"):
        train(micro_config(steps=3), run)
    assert (run / "metrics.jsonl").read_text() == before
    assert checkpoints.steps(run / "checkpoints") == [1, 2]


def test_stray_files_in_checkpoints_do_no_harm(run):
    train(micro_config(steps=2), run)
    for folder in (run / "checkpoints", run / "checkpoints" / "2", run / "checkpoints/2/arrays"):
        (folder / ".DS_Store").write_text("?")
    assert "resuming after step 2" in train(micro_config(steps=3), run)


def test_a_run_longer_than_its_phases_is_refused(run):
    config = micro_config(recipe="cpu", steps=9, warmup=(1, 1))
    message = r"num_train_steps=9, but the phases have 4 steps in all \(auxiliary 1, peaks 1, app"
    with pytest.raises(TrainingError, match=message):
        train(config, run)


def test_another_config_or_end_in_the_same_folder_is_refused(run):
    train(micro_config(steps=2), run)
    with pytest.raises(WorkdirError) as error:
        train(micro_config(steps=3, batch_size=8, **{"model.latent_size": 9}), run)
    assert "batch_size: 4 in the stored config, 8 in this one" in str(error.value)
    assert "model.latent_size: 2 in the stored config, 9 in this one" in str(error.value)
    with pytest.raises(TrainingError, match="has reached step 2, but this run ends after 1 steps"):
        train(micro_config(steps=1), run)
    assert newest(run).step == 2
    assert json.loads((run / "config.json").read_text())["num_train_steps"] == 2


def test_another_seed_s_checkpoint_is_refused_even_without_a_config(run):
    train(micro_config(steps=2), run)
    (run / "config.json").unlink()
    with pytest.raises(TrainingError, match=r"a seed other than config\.seed=1"):
        train(micro_config(steps=3, seed=1), run)


def test_a_config_that_cannot_be_read_is_refused(run):
    train(micro_config(steps=1), run)
    (run / "config.json").write_text("")
    with pytest.raises(WorkdirError, match=r"config\.json cannot be read.*Restore it"):
        train(micro_config(steps=2), run)


def test_a_workdir_that_is_no_folder_is_refused_before_the_data_is_opened(tmp_path):
    (tmp_path / "file").write_text("mine")

    def never():
        raise AssertionError("the data was opened")

    for workdir in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(WorkdirError, match="is a file, not a folder"):
            loop.train(micro_config(), str(workdir), never, "")


def test_one_run_at_a_time_in_a_folder(run):
    config = micro_config(steps=1)
    in_use = pytest.raises(WorkdirError, match=r"in use by process \d+ on \S+\. Wait for it")
    with files.claim(run, config), in_use:
        train(config, run)
    train(config, run)  # a lock that nobody holds does not block
    assert newest(run).step == 1


def test_a_loss_that_is_not_finite_ends_the_run(run):
    fields = {"optimizer.learning_rate": 1e30, "checkpoint_every_steps": 1}
    with pytest.raises(TrainingError) as error:
        train(micro_config(steps=9, **fields), run)
    message = str(error.value)
    assert "not finite" in message
    assert "neg_elbo" in message
    last = newest(run).step
    assert f"checkpoints/{last}" in message
    assert f"step {last + 1}:" in message
    assert all(np.isfinite(a).all() for a in newest(run).arrays.values())


@pytest.mark.parametrize("size", [0, -4])
def test_a_batch_size_below_one_is_refused(size, run):
    with pytest.raises(TrainingError, match=rf"config\.batch_size={size} must be at least 1"):
        train(micro_config(batch_size=size), run)


def test_requests_to_stop_are_noted_and_answered(capfd):
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as request:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
    assert request.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert capfd.readouterr().out.count("stop requested: finishing this step") == 2


def test_the_tiny_data_set_is_the_one_that_tests_build():
    overrides = get_config("mnist1k", "tiny").dataset.overrides
    assert datasets.parse_overrides(overrides) == SMALL
