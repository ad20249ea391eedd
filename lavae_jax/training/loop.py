"""The training loop, with evaluation, checkpoints and resuming.

A run resumes in this order: build the task and an initial state from the config; load the newest
intact checkpoint; replace the initial arrays by those of the checkpoint; set the data iterator to
the position in the checkpoint; continue with the next step. Batches and random numbers depend on
the step alone, and the preparation of a phase on the state before it, so an interrupted run gives
the same results as an uninterrupted one.
"""

import functools
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from lavae_jax import checkpoints, figures, input_pipeline, model, model_files
from lavae_jax.arrays import Array
from lavae_jax.checkpoints import Checkpoint
from lavae_jax.errors import UserError
from lavae_jax.input_pipeline import ProcessShard
from lavae_jax.training import console, files, forecast, tasks
from lavae_jax.training import step as steps
from lavae_jax.training.files import RunFiles
from lavae_jax.training.phases import Phase, Prepared, Task
from lavae_jax.training.signals import StopRequest
from lavae_jax.training.step import TrainState

PICTURED = 8  # images in the picture of an evaluation
REPORT_EVERY = 10  # seconds between reports while images are read before a phase
FORECAST_FROM = 500  # steps; a shorter run ends before its duration could be estimated


class TrainingError(UserError):
    """A run cannot start or continue; the message says why and what to do."""


class _Interrupted(Exception):
    """A request to stop arrived while images were read before a phase."""


class Data(NamedTuple):
    """Training data and held-out scenes."""

    training: input_pipeline.Source  # with the feature "image"
    held_out: input_pipeline.Source  # with the features "image" and, if it is known, "count"


def train(config: ConfigDict, workdir: str, open_data: Callable[[], Data], command: str) -> int:
    """Trains until the end of the run or until a request to stop.

    The data are opened last, after everything that can be checked without them. A run without a
    checkpoint starts from the trained model config.start_from, if that is set.

    Args:
        config: the run's config.
        workdir: the run's folder.
        open_data: opens the training data and the held-out scenes.
        command: the command that resumes the run, to be printed.

    Returns:
        The exit code: 0 at the end of the run, 128 + the signal's number after a request to stop.

    Raises:
        TrainingError: if the run cannot start or continue.
        WorkdirError: if the folder cannot be used for this run.
    """
    started = time.monotonic()
    folder = pathlib.Path(workdir)
    try:
        ProcessShard.of_this_process().check(config.batch_size)
    except ValueError as error:
        raise TrainingError(f"config.{error}") from error
    if jax.process_index() == 0:
        files.check(folder, config)
    try:
        task = tasks.make(config)
    except ValueError as error:
        raise TrainingError(str(error)) from error
    beginning = None
    if jax.process_index() == 0 and not checkpoints.steps(folder / "checkpoints"):
        beginning = _beginning(config, task)
    data = open_data()
    with files.claim(folder, config) as run_files:
        run = Run(config, task, data, run_files, started)
        run.resume(beginning)
        with StopRequest() as request:
            try:
                run.run(request)
            except jax.errors.JaxRuntimeError as error:
                _leave_if_a_peer_died(error, workdir)
                raise
        if run.step < run.num_steps:
            run_files.print(f"stopped after step {run.step:,}; to resume:\n  {command}")
            return 128 + (request.signal or signal.SIGTERM)
        run_files.print(console.end(run_files, run.step, run.seconds(), run.held_out))
        return 0


def describe_forecast(config: ConfigDict, open_data: Callable[[], Data]) -> str:
    """Times a few steps of each phase to estimate how long a run would take. It writes no files.

    Args:
        config: the run's config.
        open_data: opens the training data and the held-out images.

    Returns:
        A line of text.

    Raises:
        TrainingError: if the run could not start.
    """
    try:
        task = tasks.make(config)
    except ValueError as error:
        raise TrainingError(str(error)) from error
    no_files = files.NoFiles(pathlib.Path())
    run = Run(config, task, open_data(), no_files, time.monotonic())
    run.state = steps.replicate(run.state)
    run.make_forecast(StopRequest())  # not entered, so Ctrl-C interrupts as usual
    assert run.forecast is not None
    return console.forecast(run.forecast, run.evaluations_left(), run.step)


def _beginning(config: ConfigDict, task: Task) -> Checkpoint | None:
    """A checkpoint with the networks of the trained model config.start_from, if that is set."""
    name = config.get("start_from")
    if not name:
        return None
    trained = model_files.read(name)
    theirs, ours = map(_what_is_learnt, (trained.config, config))
    if unlike := files.difference(theirs, ours):
        raise TrainingError(
            f"config.start_from={name} differs from this run in more than the prior:\n"
            + "\n".join(f"  {line}" for line in unlike)
        )
    step = trained.step
    if not task.is_boundary(step) or step >= task.num_steps:
        ends = ", ".join(f"{task.end_of(phase):,}" for phase in task.phases if phase.steps)
        raise TrainingError(
            f"config.start_from={name} was trained for {step:,} steps, but the phases of this run "
            f"end after {ends} steps; give the phases of both runs the same lengths"
        )
    arrays = {**model_files.in_checkpoint(trained), "state.step": np.asarray(step, np.int32)}
    return Checkpoint(step, arrays, {"data": {"next_index": step}, "seconds": trained.seconds})


def _what_is_learnt(config: ConfigDict) -> dict[str, Any]:
    """The config of the networks without the prior, of their data, and the seed."""
    data = {name: config.dataset.get(name) for name in ("name", "overrides")}
    model = {**files.plain(config.model), "prior": None}
    return {"model": model, "dataset": data, "seed": config.seed}


class Run:
    """A run in progress.

    Args:
        config: the run's config.
        task: the model and its phases.
        data: training data and held-out scenes.
        run_files: the files in the run's folder.
        started: the time of its start, by time.monotonic().

    Attributes:
        num_steps: steps of the whole run.
        key: the random key, from config.seed.
        state: the `TrainState`; after `resume`, with a leading axis of devices.
        step: steps completed so far.
        batches: the iterator of training batches.
        evaluation: evaluates the held-out scenes.
        held_out: the metrics of the last evaluation.
        forecast: how long the rest of the run will take; None if that was not estimated.
    """

    def __init__(
        self, config: ConfigDict, task: Task, data: Data, run_files: RunFiles, started: float
    ):
        self.config, self.task, self.data, self.files = config, task, data, run_files
        self.num_steps = _num_steps(config, task)
        self.key = jax.random.key(config.seed)
        init_key, self._train_key, eval_key = jax.random.split(self.key, 3)
        self.state: Any = steps.init_state(task, init_key)
        self.step = 0
        self.batches = input_pipeline.train_batches(data.training, config.batch_size, config.seed)
        self.evaluation = Evaluation(config, task, data.held_out, eval_key)
        self.held_out: dict[str, float] = {}
        self._started, self._seconds_before = started, 0.0
        self._clock = console.Clock(config.batch_size, 0)
        self.forecast: forecast.Forecast | None = None
        self._train_steps: dict[str, Callable] = {}  # by the phase's name
        self._phase: str | None = None  # of the newest step
        self._cache: dict[str, Any] | None = None  # of that phase, for all training images
        self._constants: dict[str, Any] = {}  # of that phase, on the devices
        # The number and the metrics of a step that the devices may still compute.
        self._pending: tuple[int, dict[str, jax.Array]] | None = None

    def seconds(self) -> float:
        """Measures the duration of the run so far, without interruptions.

        Returns:
            Seconds.
        """
        return self._seconds_before + time.monotonic() - self._started

    # --- resuming ----------------------------------------------------------------

    def resume(self, beginning: Checkpoint | None = None) -> None:
        """Loads the newest checkpoint; all processes load the same one.

        Args:
            beginning: the checkpoint of a run that has none of its own; None for the initial state.

        Raises:
            TrainingError: if the checkpoint does not belong to this run.
        """
        like = {"state": self.state, "key": jax.random.key_data(self.key)}
        found = self.files.load_newest()
        if beginning is not None and found is None:
            # Optimisers, and parts that only later phases train, are as at step 0.
            arrays = checkpoints.flatten(like) | beginning.arrays
            found = beginning._replace(arrays=arrays)
        if jax.process_count() > 1:
            found = _broadcast(found, like)
        if found is not None:
            tree = checkpoints.unflatten(found.arrays, like)
            if not np.array_equal(tree["key"], like["key"]):
                raise TrainingError(
                    f"the checkpoints in {self.files.checkpoints} are those of a run with a seed "
                    f"other than config.seed={self.config.seed}. Choose another --workdir"
                )
            if "data" not in found.meta:
                raise TrainingError(
                    f"step {found.step} in {self.files.checkpoints} was not written by a training "
                    "run: its meta.json does not contain the position in the data"
                )
            self.batches.set_state(found.meta["data"])
            self.state, self.step = tree["state"], found.step
            self._seconds_before = found.meta.get("seconds", 0.0)
        if self.step > self.num_steps:
            raise TrainingError(
                f"{self.files.workdir} has reached step {self.step}, but this run ends after "
                f"{self.num_steps} steps; increase config.num_train_steps, or choose another "
                "--workdir"
            )
        self.files.open(self.config, self.step)
        self.files.print(console.beginning(self.config, str(self.files.workdir), self.step))
        self.state = steps.replicate(self.state)
        self._clock = console.Clock(self.config.batch_size, self.step)

    # --- running -----------------------------------------------------------------

    def run(self, request: StopRequest) -> None:
        """Trains until the end of the run, or until any process receives a request to stop.

        Args:
            request: a request to stop this process.

        Raises:
            TrainingError: if a metric is not finite, or a phase cannot be prepared.
        """
        alone = jax.process_count() == 1
        if self.num_steps - self.step >= FORECAST_FROM:
            self.files.print("timing a few steps of each phase ...")
            self.make_forecast(request)
            if self.forecast:
                text = console.forecast(self.forecast, self.evaluations_left(), self.step)
                self.files.print(text)
        while self.step < self.num_steps:
            phase = self.task.phase_after(self.step)
            if phase.name != self._phase:
                try:
                    self._prepare(phase, request)
                except _Interrupted:
                    return
            self._start_step(phase, stop_requested=request.signal is not None)
            last, phase_end = self.step == self.num_steps, self.task.end_of(phase)
            due = {name: self._is_due(name, last) for name in ("log", "eval", "checkpoint")}
            # The preparation of the next phase may take minutes.
            due["checkpoint"] |= self.step == phase_end
            # A single process notices a signal at once; several exchange theirs within a step.
            stopping = alone and request.signal is not None
            if any(due.values()) or last or stopping or not alone:
                values = self._finish_step()
                stopping = stopping or bool(values["stop"])
            if due["eval"]:
                self._evaluate()
            if due["log"]:
                self._log(phase, values)
            if due["checkpoint"] or last or stopping:
                self._save(evaluated=due["eval"])
            if self.step == phase_end:
                self._clock.forget()  # the next step is another program
            if stopping:
                return

    def make_forecast(self, request: StopRequest) -> None:
        """Times a few steps of each remaining phase, and an evaluation, on a copy of the state.

        The run reuses the compiled steps.

        Args:
            request: a request to stop this process, after which there is no forecast.
        """
        state = steps.unreplicate(self.state)
        batch = next(iter(input_pipeline.eval_batches(self.data.training, self.config.batch_size)))
        image = batch["image"]
        images = OneBatch(image.reshape(-1, *image.shape[2:]), self.data.training.varies)
        left, cache = [], None
        for phase, num_steps in forecast.phases_left(self.task, self.step, self.num_steps):
            inputs, preparation = {"image": image}, 0.0
            if phase.prepare:
                prepare = functools.partial(self._prepared, phase, state, images, cache=cache)
                prepared = prepare()
                cache = prepared.cache
                inputs |= steps.replicate(dict(prepared.constants))
                if cache:
                    inputs |= jax.tree.map(
                        lambda a: a.reshape(*image.shape[:2], *a.shape[1:]), cache
                    )
                    each = forecast.seconds_of(lambda _, prepare=prepare: prepare().cache)
                    preparation = each * len(self.data.training) / len(images)
            step, stop = self._train_step(phase), np.zeros(len(image), np.int32)
            seconds = forecast.seconds_of(
                lambda state, step=step, inputs=inputs, stop=stop: step(state, inputs, stop)[0],
                steps.replicate(state),
            )
            left.append(forecast.PhaseForecast(phase.name, num_steps, seconds, preparation))
            if request.signal and jax.process_count() == 1:
                return
        evaluation = 0.0
        if self.config.eval_every_steps:
            evaluation = forecast.seconds_of(lambda _: self.evaluation.first_batch(self.state))
            evaluation *= self.evaluation.num_batches
        self.forecast = forecast.Forecast(tuple(left), evaluation)

    def evaluations_left(self) -> int:
        """Counts the remaining evaluations.

        Returns:
            Their number.
        """
        return forecast.evaluations_left(self.config.eval_every_steps, self.step, self.num_steps)

    def _train_step(self, phase: Phase) -> Callable:
        """The step of a phase, made when it is first needed."""
        if phase.name not in self._train_steps:
            made = steps.make_train_step(self.task, phase, self._train_key)
            self._train_steps[phase.name] = made
        return self._train_steps[phase.name]

    def _is_due(self, name: str, last: bool) -> bool:
        """Whether to log, evaluate or save: at regular steps and at the end; never if set to 0."""
        every = self.config[f"{name}_every_steps"]
        return every > 0 and (last or self.step % every == 0)

    def _prepare(self, phase: Phase, request: StopRequest) -> None:
        """Prepares a phase before its first step, or before the first one after resuming."""
        cache, self._cache, self._constants = self._cache, None, {}
        begins = self.step == self.task.start_of(phase)
        if phase.prepare:
            self.files.print(f"preparing phase {phase.name} ...")
            state = steps.unreplicate(self.state)
            images = AllImages(
                self.data.training, self.config.batch_size, self.files.print, request
            )
            try:
                prepared = self._prepared(phase, state, images, begins, cache)
            except ValueError as error:
                raise TrainingError(str(error)) from error
            self._cache = prepared.cache
            self._constants = steps.replicate(dict(prepared.constants))
            if begins:
                self.state = steps.replicate(steps.begin_phase(state, phase, prepared))
        self._phase = phase.name

    def _prepared(self, phase, state, images, begins=False, cache=None) -> Prepared:
        saved = None if begins else state.saved.get(phase.name)
        module = self.task.module((), None)
        return phase.prepare(module, steps.variables_of(state), images, saved, cache)

    def _start_step(self, phase: Phase, stop_requested: bool) -> None:
        """Starts a step, and waits for the previous one."""
        batch = next(self.batches)
        inputs = {"image": batch["image"], **self._constants}
        if self._cache is not None:
            inputs |= jax.tree.map(lambda rows: rows[batch["index"]], self._cache)
        stop = np.full(jax.local_device_count(), stop_requested, np.int32)
        is_new, before = phase.name not in self._train_steps, time.monotonic()
        if is_new:
            self.files.print(f"compiling the step of phase {phase.name} ...")
        self.state, metrics = self._train_step(phase)(self.state, inputs, stop)
        if is_new:
            self.files.print(f"compiled in {time.monotonic() - before:.1f} s")
        if self._pending:
            self._finish_step()
        self.step += 1
        self._pending = self.step, metrics

    def _finish_step(self) -> dict[str, float]:
        """Waits for the pending step and returns its metrics, all of which must be finite."""
        assert self._pending is not None
        step, metrics = self._pending
        self._pending = None
        values = {name: float(v) for name, v in steps.unreplicate(metrics).items()}
        wrong = [name for name, value in values.items() if not np.isfinite(value)]
        if wrong:
            good = checkpoints.newest_whole(self.files.checkpoints)
            newest = f"the newest intact one is {good}" if good else "there is none yet"
            raise TrainingError(
                f"step {step:,}: these metrics are not finite: {', '.join(wrong)}. No checkpoint "
                f"was overwritten; {newest}. If it happens again, lower the learning rates"
            )
        self._clock.tick(step)
        return values

    def _evaluate(self) -> None:
        self.held_out = self.evaluation.metrics(self.state)
        self.files.write_picture(self.step, lambda: self.evaluation.picture(self.state))
        self.files.write(self.step, {f"held_out_{k}": v for k, v in self.held_out.items()})
        self._clock.pause(self.step)

    def _log(self, phase: Phase, values: dict[str, float]) -> None:
        rate = self._clock.images_per_second()
        self.files.write(self.step, {**values, **({"images_per_second": rate} if rate else {})})
        later = None  # seconds after this phase, if they are known
        if self.forecast:
            later = self.forecast.seconds(self.evaluations_left(), after=phase.name)
        self.files.print(
            console.progress(
                self.step,
                self.num_steps,
                phase.name,
                self.task.end_of(phase),
                values,
                self.held_out,
                self._clock,
                later,
            )
        )

    def _save(self, evaluated: bool) -> None:
        tree = {"state": steps.unreplicate(self.state), "key": jax.random.key_data(self.key)}
        meta = {"data": self.batches.get_state(), "seconds": round(self.seconds(), 1)}
        if evaluated:
            meta |= {"held_out": self.held_out, files.BEST: self.held_out["neg_elbo"]}
        checkpoint = Checkpoint(self.step, checkpoints.flatten(tree), meta)
        self.files.save(checkpoint, self.config.keep_checkpoints)
        self._clock.pause(self.step)


def _num_steps(config: ConfigDict, task: Task) -> int:
    """The steps of all phases, or config.num_train_steps if that is set."""
    if config.num_train_steps is None:
        return task.num_steps
    if config.num_train_steps > task.num_steps:
        lengths = ", ".join(f"{phase.name} {phase.steps:,}" for phase in task.phases)
        raise TrainingError(
            f"config.num_train_steps={config.num_train_steps}, but the phases have "
            f"{task.num_steps:,} steps in all ({lengths}); lengthen one of them"
        )
    return config.num_train_steps


class AllImages:
    """All training images in order, the same in every process.

    Progress is printed while they are read. A request to stop ends the reading.

    Args:
        source: the training data.
        batch_size: images in a batch.
        report: prints a line.
        request: a request to stop this process.

    Attributes:
        varies: whether images differ from one pass to the next, as random crops do.
        is_sample: False, since these are all images.
    """

    is_sample = False

    def __init__(
        self,
        source: input_pipeline.Source,
        batch_size: int,
        report: Callable[[str], None],
        request: StopRequest,
    ):
        self._source, self._batch_size = source, batch_size
        self._report, self._request = report, request
        self.varies = source.varies

    def __len__(self) -> int:
        return len(self._source)

    def batches(self, reading: int = 0) -> Iterator[Array]:
        """Reads all images.

        Args:
            reading: the index of this pass; images that vary, such as random crops, depend on it.

        Yields:
            Batches [B, H, W, C] of one size; the last one is padded.
        """
        started = reported = time.monotonic()
        batches = input_pipeline.eval_batches(
            self._source, self._batch_size, shard=ProcessShard(), reading=reading
        )
        for number, batch in enumerate(batches, 1):
            yield batch["image"][0]
            done, now = number * self._batch_size, time.monotonic()
            if now - reported > REPORT_EVERY and done < len(self):
                reported = now
                left = console.duration((now - started) * (len(self) / done - 1))
                self._report(f"{done:,} of {len(self):,} images  {left} left")
            if self._request.signal and jax.process_count() == 1:
                raise _Interrupted


class OneBatch(NamedTuple):
    """A single batch of training images in place of all of them, for timing.

    Attributes:
        images: [B, H, W, C].
        varies: whether images differ from one pass to the next, as random crops do.
        is_sample: True, since these are not all images.
    """

    images: Array
    varies: bool
    is_sample: bool = True

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, reading: int = 0) -> Iterator[Array]:
        """Yields the batch.

        Args:
            reading: ignored.

        Yields:
            The images, [B, H, W, C].
        """
        yield self.images


class Evaluation:
    """Mean metrics over the held-out scenes, and a picture of the first few.

    Args:
        config: the run's config.
        task: the model and its metrics.
        source: the held-out scenes.
        key: the random key of all evaluations.
    """

    def __init__(
        self, config: ConfigDict, task: Task, source: input_pipeline.Source, key: chex.PRNGKey
    ):
        self._source, self._batch_size = source, config.batch_size
        self._step = steps.make_eval_step(task, key)
        self._reconstruct = jax.jit(model.bind(task.reconstruct, task.module((), None)))

    def metrics(self, state: TrainState) -> dict[str, float]:
        """Evaluates all held-out scenes.

        Args:
            state: the state, with a leading axis of devices.

        Returns:
            The mean of each metric over the scenes for which it is defined.
        """
        totals: dict[str, np.ndarray] = {}  # the sum of each metric, and the number of images
        batches = input_pipeline.eval_batches(self._source, self._batch_size)
        for number, batch in enumerate(batches):
            out = self._totals(state, batch, number)
            totals = {n: totals.get(n, 0.0) + np.array(v, float) for n, v in out.items()}
        return {name: float(sum_ / images) for name, (sum_, images) in totals.items() if images}

    def first_batch(self, state: TrainState) -> dict:
        """Evaluates the first batch.

        Args:
            state: the state, with a leading axis of devices.

        Returns:
            For each metric, its sum and the number of images for which it is defined.
        """
        batches = input_pipeline.eval_batches(self._source, self._batch_size)
        return self._totals(state, next(iter(batches)), 0)

    @property
    def num_batches(self) -> int:
        """The number of batches in an evaluation."""
        return -(-len(self._source) // self._batch_size)

    def _totals(self, state: TrainState, batch: input_pipeline.Batch, number: int) -> dict:
        numbers = np.full(jax.local_device_count(), number, np.int32)
        return steps.unreplicate(self._step(state.params, state.batch_stats, batch, numbers))

    def picture(self, state: TrainState) -> figures.Figure:
        """Draws the first few held-out scenes and their reconstructions.

        Args:
            state: the state, with a leading axis of devices.

        Returns:
            The figure.
        """
        images = self._source.read(range(min(PICTURED, len(self._source))))["image"]
        params, batch_stats = steps.unreplicate((state.params, state.batch_stats))
        seen = self._reconstruct({"params": params, "batch_stats": batch_stats}, images)
        return figures.reconstructions(images, *seen)


# --- several processes -------------------------------------------------------


def _broadcast(found: Checkpoint | None, like: Any) -> Checkpoint | None:
    """Process 0's checkpoint in every process, so that only process 0 needs the disk."""
    if found:
        checkpoints.unflatten(found.arrays, like)  # raises before others receive a wrong checkpoint
    send = multihost_utils.broadcast_one_to_all
    step = int(send(np.int32(found.step if found else -1)))
    if step < 0:
        return None
    arrays = found.arrays if found else checkpoints.flatten(like)
    arrays = {name: np.asarray(a) for name, a in send(arrays).items()}
    # The stream of batches and the position in it are the same in every process.
    position = int(send(np.int32(found.meta["data"]["next_index"] if found else 0)))
    seconds = float(send(np.float32(found.meta.get("seconds", 0.0) if found else 0.0)))
    return Checkpoint(step, arrays, {"data": {"next_index": position}, "seconds": seconds})


def _leave_if_a_peer_died(error: Exception, workdir: str) -> None:
    if jax.process_count() == 1:
        return
    print(
        f"process {jax.process_index()}: a step failed, most likely because another process died "
        f"({str(error).splitlines()[0]}). Start all processes again; they resume from the newest "
        f"checkpoint in {workdir}.",
        flush=True,
    )
    os._exit(os.EX_TEMPFAIL)  # a normal exit would wait for the process that died
