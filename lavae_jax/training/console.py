"""Console output of a run: its speed, the time left and its metrics."""

import time

import jax
from ml_collections import ConfigDict

from lavae_jax.training.files import RunFiles
from lavae_jax.training.forecast import Forecast


class Clock:
    """Measures the seconds per step, without compilation, evaluation and saving.

    Args:
        batch_size: images in a step.
        start: steps completed before the clock starts.

    Attributes:
        steps: the number of steps measured.
    """

    def __init__(self, batch_size: int, start: int):
        self._batch_size = batch_size
        self._last_step = start
        self._last_time: float | None = None
        self.steps, self._seconds = 0, 0.0

    def tick(self, step: int) -> None:
        """Records that a step has ended.

        Args:
            step: steps completed so far.
        """
        now = time.perf_counter()
        if self._last_time is not None:  # otherwise the time includes compilation
            self.steps += step - self._last_step
            self._seconds += now - self._last_time
        self._last_step, self._last_time = step, now

    def pause(self, step: int) -> None:
        """Excludes the time since the last call of `tick` from the measurement.

        Args:
            step: steps completed so far.
        """
        self._last_step, self._last_time = step, time.perf_counter()

    def forget(self) -> None:
        """Discards the measurements. The next step is not measured, since it is compiled first."""
        self._last_time, self.steps, self._seconds = None, 0, 0.0

    def seconds_a_step(self) -> float:
        """Averages over the measured steps.

        Returns:
            Seconds; 0 if no step was measured.
        """
        return self._seconds / max(self.steps, 1)

    def images_per_second(self) -> float | None:
        """Computes the speed of training.

        Returns:
            Images per second; None if no step was measured.
        """
        return self._batch_size / self.seconds_a_step() if self.steps else None


def duration(seconds: float) -> str:
    """Formats a duration.

    Args:
        seconds: the duration.

    Returns:
        Text such as 4:05:06 or 3 days 4:05:06.
    """
    days, seconds = divmod(round(seconds), 86_400)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days} day{'' if days == 1 else 's'} {clock}" if days else clock


def beginning(config: ConfigDict, workdir: str, step: int) -> str:
    """Describes a run that starts or resumes.

    Args:
        config: the run's config.
        workdir: the run's folder.
        step: steps completed so far.

    Returns:
        A line of text.
    """
    text = f"{config.name}, recipe {config.recipe}, in {workdir}"
    return f"{text}: resuming after step {step:,}" if step else text


def forecast(forecast: Forecast, evaluations: int, step: int) -> str:
    """Describes how long a run will take.

    Args:
        forecast: the estimate.
        evaluations: the number of remaining evaluations.
        step: steps completed so far.

    Returns:
        A line of text.
    """
    seconds = forecast.seconds(evaluations)
    phases = ", ".join(
        f"{phase.name} {phase.steps:,} steps of {_brief(phase.seconds_per_step)}"
        for phase in forecast.phases
    )
    devices = f"{jax.device_count()} {jax.devices()[0].device_kind} device(s)"
    what = "the rest of the run" if step else "the run"
    return f"{what} will take about {duration(seconds)} on {devices}: {phases}"


def _brief(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"


def end(files: RunFiles, step: int, seconds: float, held_out: dict[str, float]) -> str:
    """Describes a finished run: its duration, its last metrics, and where its files are.

    Args:
        files: the run's files.
        step: steps completed.
        seconds: the duration of the run.
        held_out: the metrics of the last evaluation; may be empty.

    Returns:
        Lines of text.
    """
    metrics = [f"{name} {value:.4g}" for name, value in held_out.items()]
    lines = [
        f"finished after step {step:,}, {duration(seconds)} in all",
        f"  model:       {files.checkpoints / str(step)}",
        f"  evaluation:  {files.workdir / 'metrics.jsonl'}",
    ]
    if held_out:
        lines[2] += f" (held out: {', '.join(metrics)})"
        lines.append(f"  pictures:    {files.picture(step)}")
    return "\n".join(lines)


def progress(
    step: int,
    num_steps: int,
    phase: str,
    phase_end: int,
    values: dict[str, float],
    held_out: dict[str, float],
    clock: Clock,
    later: float | None = None,
) -> str:
    """Describes a step: its metrics, the speed and the time left.

    Args:
        step: steps completed so far.
        num_steps: steps of the whole run.
        phase: the name of the phase.
        phase_end: steps of the run at the end of the phase.
        values: the metrics of the step.
        held_out: the metrics of the last evaluation; may be empty.
        clock: measures the speed.
        later: seconds from the end of this phase to the end of the run, if known.

    Returns:
        A line of text.
    """
    parts = [
        f"{name} {value:.2f}" for name, value in values.items() if name.startswith(("neg", "kl"))
    ]
    if values.get("overflow"):
        parts.append(f"overflow {values['overflow']:.3f}")
    if "count_accuracy" in held_out:
        parts.append(f"held-out count {held_out['count_accuracy']:.1%}")
    if rate := clock.images_per_second():
        end = min(phase_end, num_steps)
        left = duration((end - step) * clock.seconds_a_step() + (later or 0))
        of_what = " of this phase" if end < num_steps and later is None else ""
        parts.append(f"{rate:.0f} images/s  {left} left{of_what}")
    return f"step {step:,}/{num_steps:,} ({phase})  loss {values['loss']:.2f}  {'  '.join(parts)}"
