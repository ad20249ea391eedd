"""The training loop: one pmapped step, and everything around it that keeps a run safe.

The order in which a run is taken up again: build the task, the optimiser and an
initial state from the config; load the newest whole checkpoint; put its arrays in
place of the initial ones; set the data iterator to where it was; go on with the next
step. Batches and random numbers depend on the step alone, so stops leave no trace.
"""

import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

import datasets
from lavae_jax import checkpoints, figures, input_pipeline, tasks
from lavae_jax.checkpoints import Checkpoint
from lavae_jax.input_pipeline import Share
from lavae_jax.model import Variables
from lavae_jax.run_files import RunFiles
from lavae_jax.tasks import Task

AXIS = "devices"
PICTURED = 8  # images in the picture of an evaluation
BEST = "held_out_neg_elbo"  # the checkpoint with the lowest is kept


class TrainingError(Exception):
    """A run cannot start or go on; the message says why and what to do."""


class TrainState(NamedTuple):
    step: jax.Array
    params: Any
    batch_stats: Any
    opt_state: optax.OptState


# --- steps -------------------------------------------------------------------


def make_optimizer(task: Task) -> optax.GradientTransformation:
    """Adamax (App. B), with a learning rate for each group of parameters."""

    def groups(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: task.group(checkpoints.path_name(path)), params
        )

    by_group = {name: optax.adamax(rate) for name, rate in task.learning_rates.items()}
    return optax.multi_transform(by_group, groups)


def init_state(task: Task, key: chex.PRNGKey) -> TrainState:
    params, batch_stats = task.init(key)
    return TrainState(
        jnp.zeros((), jnp.int32), params, batch_stats, make_optimizer(task).init(params)
    )


def keys_of_images(key: chex.PRNGKey, batch: jax.Array, size: int) -> chex.PRNGKey:
    """One key for each image of this device, by its place in the global batch."""
    key = jax.random.fold_in(key, batch)
    place = lax.axis_index(AXIS) * size + jnp.arange(size)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(place)


def make_train_step(task: Task, task_loss: Callable, key: chex.PRNGKey) -> Callable:
    """(state, images, stop), each with a leading axis of devices -> (state, metrics).

    A step whose loss or gradient is not finite leaves the state as it was. `stop` is
    whether the process was asked to; the metrics say whether any was.
    """
    optimizer = make_optimizer(task)

    def train_step(state: TrainState, x: jax.Array, stop: jax.Array):
        keys = keys_of_images(key, state.step, len(x))

        def loss(params):
            return task_loss(params, state.batch_stats, x, keys, state.step, axis_name=AXIS)

        (total, (batch_stats, metrics)), grads = jax.value_and_grad(loss, has_aux=True)(
            state.params
        )
        grads, metrics = lax.pmean((grads, {"loss": total, **metrics}), AXIS)
        for name, part in grads.items():
            metrics[f"gradient_norm_{name}"] = optax.global_norm(part)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        finite = jnp.all(jnp.stack([jnp.isfinite(m) for m in metrics.values()]))
        proposed = TrainState(state.step, params, batch_stats, opt_state)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, state)
        metrics["stop"] = lax.pmax(stop, AXIS)
        return kept._replace(step=state.step + 1), metrics

    return jax.pmap(train_step, axis_name=AXIS, donate_argnums=0)


def make_eval_step(task: Task, key: chex.PRNGKey) -> Callable:
    """(params, batch_stats, batch, number of the batch) -> sums over all images."""

    def eval_step(params, batch_stats, batch, number):
        keys = keys_of_images(key, number, len(batch["image"]))
        variables = Variables(params, batch_stats)
        metrics = task.evaluate(variables, batch["image"], batch["count"], keys)
        valid = batch["valid"].astype(float)
        sums = {k: jnp.sum(jnp.where(batch["valid"], v, 0)) for k, v in metrics.items()}
        return lax.psum({**sums, "images": valid.sum()}, AXIS)

    return jax.pmap(eval_step, axis_name=AXIS)


def replicate(tree: Any) -> Any:
    """The same arrays on every local device, laid out as steps return them.

    Arrays that come straight from the host would have every step compiled twice.
    """
    n = jax.local_device_count()
    stacked = jax.tree.map(lambda a: np.broadcast_to(a, (n, *np.shape(a))), tree)
    return jax.pmap(lambda a: a, axis_name=AXIS)(stacked)


def unreplicate(tree: Any) -> Any:
    """The first local device's arrays, on the host."""
    return jax.tree.map(lambda a: np.asarray(a.addressable_data(0)).reshape(a.shape[1:]), tree)


# --- the run -----------------------------------------------------------------


class Data(NamedTuple):
    """The training split: what is trained on, and the scenes that are held out."""

    source: input_pipeline.Source
    held_out_source: input_pipeline.Source
    training: range
    held_out: range


def open_data(config: ConfigDict) -> Data:
    """The data set that a config names; it is built if it is not there."""
    settings = config.dataset
    try:
        builder = datasets.make_builder(
            settings.name,
            data_dir=settings.data_dir or None,
            mnist_dir=settings.mnist_dir or None,
            **datasets.parse_overrides(settings.overrides),
        )
        datasets.prepare(builder)
    except (ValueError, datasets.BuildError) as error:
        raise TrainingError(str(error)) from error
    if config.model.channels != builder.CHANNELS:
        raise TrainingError(
            f"config.model.channels={config.model.channels}, but scenes of {settings.name} "
            f"have {builder.CHANNELS}"
        )
    source = input_pipeline.open_split(builder, "train")
    labelled = input_pipeline.open_split(builder, "train", ("image", "count"))
    first_held_out = len(source) - settings.held_out
    if not 0 < settings.held_out < len(source):
        raise TrainingError(
            f"config.dataset.held_out={settings.held_out} of {len(source)} training scenes"
        )
    return Data(source, labelled, range(first_held_out), range(first_held_out, len(source)))


class StopRequest:
    """Notes SIGTERM and SIGINT, so that the loop can finish its step first."""

    def __init__(self):
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, _frame):
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait
        self.signal = number


def train(config: ConfigDict, workdir: str, command: str) -> int:
    """Trains until the end or until it is told to stop; returns the exit code.

    `command` is what starts the same run again, to be shown.
    """
    started = time.monotonic()
    share = Share.of_this_process()
    try:
        share.check(config.batch_size)
    except ValueError as error:
        raise TrainingError(f"config.{error}") from error
    writes = jax.process_index() == 0
    files = RunFiles(pathlib.Path(workdir)) if writes else None
    if writes:
        files.check(config)
    try:
        task = tasks.make(config)
    except ValueError as error:
        raise TrainingError(str(error)) from error
    data = open_data(config)
    key = jax.random.key(config.seed)
    init_key, train_key, eval_key = jax.random.split(key, 3)

    state = init_state(task, init_key)
    batches = input_pipeline.train_batches(
        data.source, config.batch_size, config.seed, examples=data.training
    )
    state, start, seconds_before = _take_up(files, state, key, batches)
    if start > config.num_train_steps:
        raise TrainingError(
            f"{workdir} is at step {start}, past config.num_train_steps={config.num_train_steps}"
        )
    if writes:
        files.claim(config)
        files.open(start)
        if start:
            files.say(f"going on from step {start:,}")
    state = replicate(state)
    steps = {p.loss: make_train_step(task, p.loss, train_key) for p in task.phases}
    evaluate = _Evaluation(config, task, data, eval_key)
    clock = _Clock(config.batch_size, start)
    held_out: dict[str, float] = {}
    unsettled = None  # the last step and its metrics, while the device may be at work on it

    def settle() -> dict[str, float]:
        """Waits for the last step and checks it."""
        nonlocal unsettled
        step, metrics = unsettled
        unsettled = None
        values = _check(step, metrics, files)
        clock.tick(step)
        if step - start == 3 and writes:
            files.say(_forecast(config, task, step, clock))
        return values

    def seconds() -> float:
        """What the run took so far, all sittings together."""
        return seconds_before + time.monotonic() - started

    def save(step: int, evaluated: bool) -> None:
        if writes:
            tree = {"state": unreplicate(state), "key": jax.random.key_data(key)}
            meta = {"data": batches.get_state(), "seconds": round(seconds(), 1)}
            if evaluated:
                meta |= {"held_out": held_out, BEST: held_out["neg_elbo"]}
            checkpoints.save(files.checkpoints, Checkpoint(step, checkpoints.flatten(tree), meta))
            checkpoints.prune(files.checkpoints, config.keep_checkpoints, BEST)
        clock.pause(step)

    try:
        with StopRequest() as request:
            for step in range(start + 1, config.num_train_steps + 1):
                last = step == config.num_train_steps
                due = {
                    name: _is_due(step, last, config[f"{name}_every_steps"])
                    for name in ("log", "eval", "checkpoint")
                }
                asked = request.signal is not None
                images = next(batches)["image"]
                phase = task.phase_at(step)
                state, metrics = steps[phase.loss](
                    state, images, np.full(share.num_devices, asked, np.int32)
                )
                if unsettled:
                    settle()
                unsettled = step, metrics
                # One process sees its own signal at once; several agree by way of a step.
                stopping = request.signal is not None and share.process_count == 1
                if any(due.values()) or last or stopping or share.process_count > 1:
                    values = settle()
                    stopping = stopping or bool(values["stop"])
                if due["eval"]:
                    held_out = evaluate(state)
                    if writes:
                        files.write_picture(step, evaluate.picture(state))
                        files.write(step, {f"held_out_{k}": v for k, v in held_out.items()})
                    clock.pause(step)
                if due["log"] and writes:
                    rate = clock.images_per_second()
                    files.write(step, {**values, **({"images_per_second": rate} if rate else {})})
                    files.say(_progress(config, phase, step, values, held_out, clock))
                if due["checkpoint"] or last or stopping:
                    save(step, evaluated=due["eval"])
                if step == phase.end:
                    clock.forget()  # the next step is another program
                if stopping and not last:
                    if writes:
                        files.say(f"stopped after step {step:,}; to go on:\n  {command}")
                    return 128 + (request.signal or signal.SIGTERM)
    except jax.errors.JaxRuntimeError as error:
        _leave_if_a_peer_died(error, workdir)
        raise
    if writes:
        took = duration(seconds())
        files.say(f"finished after step {config.num_train_steps:,}, {took} in all: {workdir}")
    return 0


def _is_due(step: int, last: bool, every: int) -> bool:
    """Every so many steps and at the end; never if `every` is 0."""
    return every > 0 and (last or step % every == 0)


def _take_up(files, state, key, batches) -> tuple[TrainState, int, float]:
    """The newest checkpoint's state, step and seconds, or the start's.

    State and step are the same in every process.
    """
    found = checkpoints.load_newest(files.checkpoints) if files else None
    if jax.process_count() > 1:
        found = _broadcast(found, {"state": state, "key": jax.random.key_data(key)})
    if found is None:
        return state, 0, 0.0
    tree = checkpoints.unflatten(found.arrays, {"state": state, "key": jax.random.key_data(key)})
    batches.set_state(found.meta["data"])
    return tree["state"], found.step, found.meta.get("seconds", 0.0)


def _broadcast(found: Checkpoint | None, like: Any) -> Checkpoint | None:
    """Process 0's checkpoint in every process; only process 0 needs the disk."""
    share = multihost_utils.broadcast_one_to_all
    step = int(share(np.int32(found.step if found else -1)))
    if step < 0:
        return None
    arrays = found.arrays if found else checkpoints.flatten(like)
    arrays = {name: np.asarray(a) for name, a in share(arrays).items()}
    # The stream of batches is the same everywhere, and so is the place in it.
    position = int(share(np.int32(found.meta["data"]["next_index"] if found else 0)))
    return Checkpoint(step, arrays, {"data": {"next_index": position}})


def _check(step: int, metrics: dict[str, jax.Array], files: RunFiles | None) -> dict[str, float]:
    """A step's metrics as numbers; one that is not finite ends the run."""
    values = {name: float(value) for name, value in unreplicate(metrics).items()}
    wrong = [name for name, value in values.items() if not np.isfinite(value)]
    if wrong:
        whole = checkpoints.steps(files.checkpoints) if files else []
        good = f"{files.checkpoints / str(whole[-1])}" if whole else "there is none yet"
        raise TrainingError(
            f"step {step:,}: {', '.join(wrong)} not finite. Nothing was overwritten; "
            f"the last good checkpoint: {good}"
        )
    return values


def _leave_if_a_peer_died(error: Exception, workdir: str) -> None:
    if jax.process_count() == 1:
        return
    print(
        f"process {jax.process_index()}: a step failed, most likely because another process died "
        f"({str(error).splitlines()[0]}). Start all processes again; they go on from the newest "
        f"checkpoint in {workdir}.",
        flush=True,
    )
    os._exit(1)  # the usual way out would wait for the dead


class _Evaluation:
    """Means over the held-out scenes, and a picture of the first few."""

    def __init__(self, config: ConfigDict, task: Task, data: Data, key: chex.PRNGKey):
        self._data, self._batch_size = data, config.batch_size
        self._step = make_eval_step(task, key)
        self._explain = jax.jit(lambda params, stats, x: task.explain(Variables(params, stats), x))

    def __call__(self, state: TrainState) -> dict[str, float]:
        sums: dict[str, float] = {}
        batches = input_pipeline.eval_batches(
            self._data.held_out_source, self._batch_size, examples=self._data.held_out
        )
        for number, batch in enumerate(batches):
            numbers = np.full(jax.local_device_count(), number, np.int32)
            out = unreplicate(self._step(state.params, state.batch_stats, batch, numbers))
            sums = {name: sums.get(name, 0.0) + float(value) for name, value in out.items()}
        images = sums.pop("images")
        return {name: value / images for name, value in sums.items()}

    def picture(self, state: TrainState) -> figures.Figure:
        index = self._data.held_out[:PICTURED]
        images = self._data.held_out_source.read(index)["image"]
        explained = self._explain(unreplicate(state.params), unreplicate(state.batch_stats), images)
        return figures.explanations(images, *jax.tree.map(np.asarray, explained))


class _Clock:
    """Seconds a step, without those that compilation, evaluation and saving take."""

    def __init__(self, batch_size: int, start: int):
        self._batch_size = batch_size
        self._last_step, self._last_time = start, None
        self._steps, self._seconds = 0, 0.0

    def tick(self, step: int) -> None:
        now = time.perf_counter()
        if self._last_time is not None:  # otherwise the step was compiled
            self._steps += step - self._last_step
            self._seconds += now - self._last_time
        self._last_step, self._last_time = step, now

    def pause(self, step: int) -> None:
        self._last_step, self._last_time = step, time.perf_counter()

    def forget(self) -> None:
        """Starts anew, as at the beginning."""
        self._last_time, self._steps, self._seconds = None, 0, 0.0

    def seconds_a_step(self) -> float:
        return self._seconds / max(self._steps, 1)

    def images_per_second(self) -> float | None:
        """None as long as there is nothing to tell it from."""
        return self._batch_size / self.seconds_a_step() if self._steps else None


def duration(seconds: float) -> str:
    """3 days 4:05:06, or 4:05:06."""
    days, seconds = divmod(round(seconds), 86_400)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days} days {clock}" if days else clock


def _forecast(config: ConfigDict, task: Task, step: int, clock: _Clock) -> str:
    seconds, phase = clock.seconds_a_step(), task.phase_at(step)
    device = jax.devices()[0]
    text = (
        f"{seconds:.3f} s a step on {jax.device_count()} {device.device_kind} device(s): "
        f"{config.num_train_steps:,} steps take about {duration(seconds * config.num_train_steps)}"
    )
    if phase.end and phase.end < config.num_train_steps:
        text += f", if all were like those of this phase ({phase.name}, to step {phase.end:,})"
    if device.platform == "cpu" and config.recipe == "paper":
        text += (
            "\nThis is the paper's own setting, made for accelerators. On CPUs use\n"
            f"  python launch/train.py --config=configs/{config.name}.py:cpu"
        )
    return text


def _progress(config, phase, step, values, held_out, clock) -> str:
    parts = [
        f"{name} {value:.2f}" for name, value in values.items() if name.startswith(("neg", "kl"))
    ]
    if values.get("overflow"):
        parts.append(f"overflow {values['overflow']:.3f}")
    if "count_accuracy" in held_out:
        parts.append(f"held-out count {held_out['count_accuracy']:.1%}")
    if rate := clock.images_per_second():
        end = phase.end or config.num_train_steps
        left = duration((end - step) * clock.seconds_a_step())
        of_what = " of this phase" if end < config.num_train_steps else ""
        parts.append(f"{rate:.0f} images/s  {left} left{of_what}")
    return (
        f"step {step:,}/{config.num_train_steps:,} ({phase.name})  loss {values['loss']:.2f}  "
        f"{'  '.join(parts)}"
    )
