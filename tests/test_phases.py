"""What a phase optimises, what it begins with, and how its steps are counted."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from micro import Drawn, metrics, train
from micro import config as micro_config

from lavae_jax import inference, model, networks, vae
from lavae_jax.training import calibration, elbo, loop, phases, sleep, step, tasks

TWO_A_PHASE = {"recipe": "cpu", "warmup": (2, 2)}


def image_keys(number):
    return jax.random.split(jax.random.key(0), number)


def test_the_warm_up_compares_logits_without_gamma_to_the_kl_map():
    task = tasks.make(micro_config(warmup=(2, 2)))
    module = task.module((), None)
    variables = model.initialise(module, jax.random.key(0))
    x = Drawn(micro_config(), 0, 3).read(range(3))["image"]
    assert module.settings.gamma_for(x.shape[1:3]) != 1

    def parts(module, x):
        return module.lavae.location(x), vae.kl(module.auxiliary, x)

    logits, kl = jax.jit(model.bind(parts, module))(variables, x)
    target = vae.kl_map(kl, module.auxiliary_settings.cell, x.shape[1:3])
    loss = model.bind(lambda m, x, keys: task.phases[0].loss(m, x, keys, 0), module)
    _, metrics = jax.jit(loss)(variables, x, image_keys(3))
    expected = np.square(np.asarray(logits) - np.asarray(target)).sum((1, 2)).mean()
    np.testing.assert_allclose(metrics["auxiliary_distance"], expected, rtol=1e-4)


def test_beta_continues_after_the_crops():
    fields = {"name": "baseline_mnist1k", "curriculum.crops.steps": 10}
    fields |= {"curriculum.crops.side": 24}
    fields |= {"curriculum.beta.start": 0.0, "curriculum.beta.end": 1.0}
    config = micro_config(**fields, **{"curriculum.beta.steps": 40})
    task = tasks.make(config)
    module = task.module((), None)
    variables = model.initialise(module, jax.random.key(0))
    x = Drawn(config, 0, 2).read(range(2))["image"]
    for phase, number, beta in zip(task.phases, (4, 10), (0.1, 0.5), strict=True):
        loss = model.bind(lambda m, x, keys, p=phase, n=number: p.loss(m, x, keys, n), module)
        total, metrics = jax.jit(loss)(variables, x, image_keys(2))
        expected = metrics["neg_log_likelihood"] + beta * metrics["kl"]
        np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_temperature_and_forced_counts_continue_after_the_warm_up():
    config = micro_config(
        warmup=(2, 2),
        **{
            "model.threshold": -99.0,  # objects are found, so that both make a difference
            "curriculum.temperature.start": 2.0,
            "curriculum.temperature.end": 0.5,
            "curriculum.temperature.steps": 8,
            "curriculum.warmup.force_one_end": 0.0,
        },
    )
    task = tasks.make(config)
    module = task.module((), None)
    variables = model.initialise(module, jax.random.key(0))
    x = Drawn(config, 0, 3).read(range(3))["image"]

    def expected(module, x, keys, temperature):
        keys = jax.vmap(jax.random.split, out_axes=1)(keys)[1]
        return elbo.elbo_loss(config, module.lavae, x, keys, temperature=temperature)[0]

    loss = jax.jit(model.bind(lambda m, x, keys, n: task.phases[1].loss(m, x, keys, n)[0], module))
    expected = jax.jit(model.bind(expected, module))
    for number, temperature in ((0, 1.0), (4, 0.5)):  # the steps 4 and 8 of the run
        ours = loss(variables, x, image_keys(3), number)
        theirs = expected(variables, x, image_keys(3), temperature)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        assert not np.isclose(ours, expected(variables, x, image_keys(3), 2.0), rtol=1e-5)


def test_before_its_phase_a_mixture_has_no_effect_whatever_its_parameters_are():
    config = micro_config(recipe="mixture", warmup=(2, 2))
    task = tasks.make(config)
    (phase,) = (phase for phase in task.phases if phase.name == "appearance")
    module = task.module((), None)
    variables = model.initialise(module, jax.random.key(0))
    x = Drawn(config, 0, 3).read(range(3))["image"]
    loss = jax.jit(model.bind(lambda m, x, keys: phase.loss(m, x, keys, 0)[0], module))
    drawn = jax.tree.map(
        lambda a: np.random.default_rng(0).normal(size=a.shape).astype(np.float32),
        model.get_part(variables["params"], "lavae.prior"),
    )
    changed = model.with_part(variables["params"], "lavae.prior", drawn)
    losses = [
        loss({**variables, "params": p}, x, image_keys(3)) for p in (variables["params"], changed)
    ]
    assert losses[0] == losses[1]


def test_overflow_is_the_number_of_objects_of_an_image_that_are_cut():
    config = micro_config(recipe="cpu", **{"budget.slots": 2, "budget.objects_per_image": 0.5})
    module = tasks.make(config).module((), None)
    variables = model.initialise(module, jax.random.key(0))
    x = Drawn(config, 0, 4).read(range(4))["image"]

    def loss(module, x, keys):
        _, metrics, out = elbo.elbo_loss(config, module.lavae, x, keys)
        return metrics["overflow"], out.count, out.posterior.count

    overflow, inferred, used = jax.jit(model.bind(loss, module))(variables, x, image_keys(4))
    assert used.sum() == 2  # half an object for each of 4 images
    assert inferred.sum() > 2
    np.testing.assert_allclose(overflow, (inferred.sum() - 2) / 4)


def test_a_frozen_auxiliary_vae_uses_and_keeps_its_batch_statistics():
    task = tasks.make(micro_config(**TWO_A_PHASE))
    variables = model.initialise(task.module((), None), jax.random.key(0))
    x = Drawn(micro_config(), 0, 3).read(range(3))["image"]

    def kl(module, x):
        return vae.kl(module.auxiliary, x)

    expected = jax.jit(model.bind(kl, task.module((), None)))(variables, x)
    for part, is_trained in (("lavae.location", False), ("auxiliary", True)):
        apply = jax.jit(model.bind_training(kl, task.module((part,), None)))
        found, stats = apply(variables, x)
        before = jax.tree.leaves(variables["batch_stats"]["auxiliary"])
        after = jax.tree.leaves(stats["auxiliary"])
        is_same = all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
        assert is_same == (not is_trained)
        assert np.allclose(found, expected, rtol=1e-4) == (not is_trained)


def test_the_appearance_phase_begins_with_what_the_calibrated_network_finds(monkeypatch):
    """A calibration that lowers all logits far below the threshold leaves no object."""
    config = micro_config(recipe="sleep", warmup=(2, 2))
    task = tasks.make(config)
    (phase,) = (phase for phase in task.phases if phase.name == "appearance")
    module = task.module((), None)
    variables = step.variables_of(step.init_state(task, jax.random.key(0)))
    images = loop.OneBatch(Drawn(config, 0, 4).read(range(4))["image"], varies=False)
    for shift, is_found in ((0.0, True), (-1e4, False)):
        monkeypatch.setattr(calibration, "fit", lambda *_, shift=shift: (1.0, shift))
        prepared = phase.prepare(module, variables, images, None)
        assert prepared.cache["located"].count.any() == is_found


def test_sleep_again_composes_scenes_of_objects_found_by_the_location_network():
    """A network that finds nothing has no objects to compose scenes of; the KL map still has."""
    config = micro_config(recipe="sleep", warmup=(2, 2))
    with config.unlocked():
        config.curriculum.phases = ("auxiliary", "sleep", "sleep_again")
        config.curriculum.sleep_again = {"steps": 3, "learning_rate": 0.1}
    task = tasks.make(config)
    _, asleep, again = task.phases
    assert task.num_steps == 7
    rate = again.learning_rates["lavae.location"]  # its own, to the end of its own steps
    np.testing.assert_allclose([rate(0), rate(3)], [0.1, 0], atol=1e-8)
    module = task.module((), None)
    variables = step.variables_of(step.init_state(task, jax.random.key(0)))
    location = networks.scale_logits(variables["params"]["lavae"]["location"], 1.0, -1e4)
    blind = {
        **variables,
        "params": model.with_part(variables["params"], "lavae.location", location),
    }
    x = Drawn(config, 0, 40).read(range(40))["image"]
    images = types.SimpleNamespace(batches=lambda: [x], is_sample=False)
    for phase, seen in ((asleep, blind), (again, variables)):
        assert len(phase.prepare(module, seen, images, None).constants["objects"])
    with pytest.raises(ValueError, match="no object of the training images stands alone"):
        again.prepare(module, blind, images, None)


def test_calibration_composes_scenes_of_the_objects_that_the_phase_before_used(monkeypatch):
    """As above: for a network that finds nothing, only the KL map has objects."""
    config = micro_config(recipe="sleep", warmup=(2, 2))
    monkeypatch.setattr(calibration, "fit", lambda *_: (1.0, 0.0))
    x = Drawn(config, 0, 40).read(range(40))["image"]
    images = types.SimpleNamespace(batches=lambda: [x], is_sample=False, varies=True)

    def prepare(*names):
        with config.unlocked():
            config.curriculum.phases = ("auxiliary", *names, "appearance")
            config.curriculum.sleep_again = {"steps": 3, "learning_rate": 0.1}
        task = tasks.make(config)
        module = task.module((), None)
        variables = step.variables_of(step.init_state(task, jax.random.key(0)))
        blind = networks.scale_logits(variables["params"]["lavae"]["location"], 1.0, -1e4)
        params = model.with_part(variables["params"], "lavae.location", blind)
        variables = {**variables, "params": params}
        return task.phases[-1].prepare(module, variables, images, None)

    np.testing.assert_array_equal(prepare("sleep").saved["calibration"], [1, 0])
    with pytest.raises(ValueError, match="no object of the training images stands alone"):
        prepare("sleep", "sleep_again")


def test_calibrated_log_odds_are_the_logistic_regression_s(monkeypatch):
    """a l + b, where l are the log-odds before."""
    fields = {"model.min_object_probability": 0.1}  # the threshold does not stand for one half
    config = micro_config(recipe="sleep", warmup=(2, 2), **fields)
    task = tasks.make(config)
    module = task.module((), None)
    variables = step.variables_of(step.init_state(task, jax.random.key(0)))
    monkeypatch.setattr(calibration, "SCENES", 64)
    monkeypatch.setattr(calibration, "fit_logistic", lambda *_: (0.5, 0.25))
    objects = np.ones((1, 9, 9, 1), np.float32)
    scale, shift = calibration.fit(
        module,
        variables,
        objects,
        lambda objects, keys: sleep.compose(objects, keys, (24, 24), 2, 0.0),
    )

    def log_odds(module, x):
        return inference.object_logits(module.settings, inference.location_logits(module.lavae, x))

    x = Drawn(config, 0, 2).read(range(2))["image"]
    find = jax.jit(model.bind(log_odds, module))
    before = find(variables, x)
    location = networks.scale_logits(variables["params"]["lavae"]["location"], scale, shift)
    after = find(
        {**variables, "params": model.with_part(variables["params"], "lavae.location", location)}, x
    )
    np.testing.assert_allclose(after, 0.5 * before + 0.25, rtol=1e-3, atol=1e-3)


def test_the_learning_rate_of_a_phase_counts_from_its_own_first_step():
    """The first step of Adamax is the rate times the gradient's sign."""

    def loss(module, x, keys, step):
        return jnp.sum(module.variables["params"]["lavae"]["count_logits"]), {}

    rates = {"lavae.count_logits": lambda step: jnp.where(step == 0, 1e-3, 0.0)}
    first, second = (phases.Phase(name, 5, loss, rates) for name in ("first", "second"))
    task = tasks.make(micro_config())._replace(phases=(first, second))
    state = step.init_state(task, jax.random.key(0))._replace(step=np.int32(5))
    before = np.asarray(state.params["lavae"]["count_logits"])
    run = step.make_train_step(task, second, jax.random.key(1))
    batch = {"image": np.zeros((1, 2, 24, 24, 1))}
    state, _ = run(step.replicate(state), batch, np.zeros(1, np.int32))
    after = step.unreplicate(state).params["lavae"]["count_logits"]
    np.testing.assert_allclose(before - after, 1e-3, rtol=1e-3)


def test_a_phase_that_prepares_nothing_has_no_cache_and_no_constants():
    def prepare(module, variables, images, saved, cache):
        return phases.Prepared(cache={"located": np.zeros(4)}, constants={"objects": np.ones(2)})

    first = phases.Phase("first", 1, None, {}, prepare)
    second = phases.Phase("second", 1, None, {})
    config = micro_config(steps=2)
    task = tasks.make(config)._replace(phases=(first, second))
    data = loop.Data(Drawn(config, 0, 4), Drawn(config, 1, 4))
    run = loop.Run(config, task, data, types.SimpleNamespace(print=lambda line: None), 0.0)
    run.state = step.replicate(run.state)
    run._prepare(first, None)
    assert run._cache.keys() == {"located"}
    assert run._constants.keys() == {"objects"}
    run._prepare(second, None)
    assert not run._cache
    assert not run._constants


def test_cached_values_are_in_the_order_of_images_without_padding():
    batches = [{"count": np.array(count), "pixel": np.eye(3)[count]} for count in ([0, 2], [1, 0])]
    cache = phases.gather(batches, 3)
    assert cache["count"].tolist() == [0, 2, 1]
    np.testing.assert_array_equal(cache["pixel"], np.eye(3)[[0, 2, 1]])


def test_a_run_logs_and_evaluates_at_its_end_whatever_its_length(tmp_path):
    train(micro_config(steps=5, eval_every_steps=3, log_every_steps=2), tmp_path)
    assert list(metrics(tmp_path)) == [2, 4, 5]
    assert list(metrics(tmp_path, "held_out_neg_elbo")) == [3, 5]


def test_intervals_of_0_switch_logs_and_evaluations_off(tmp_path):
    train(micro_config(steps=2, eval_every_steps=0, log_every_steps=0), tmp_path)
    assert not metrics(tmp_path)
    assert not metrics(tmp_path, "held_out_neg_elbo")
