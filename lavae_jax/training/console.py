"""Console output of a run: its speed, the time left, its metrics."""

import time

import jax
from ml_collections import ConfigDict

from lavae_jax.training.files import RunFiles
from lavae_jax.training.forecast import Forecast


class Clock:
    """Seconds a step, without those that compilation, evaluation and saving take."""

    def __init__(self, batch_size: int, start: int):
        self._batch_size = batch_size
        self._last_step, self._last_time = start, None
        self.steps, self._seconds = 0, 0.0

    def tick(self, step: int) -> None:
        now = time.perf_counter()
        if self._last_time is not None:  # otherwise the step was compiled
            self.steps += step - self._last_step
            self._seconds += now - self._last_time
        self._last_step, self._last_time = step, now

    def pause(self, step: int) -> None:
        self._last_step, self._last_time = step, time.perf_counter()

    def forget(self) -> None:
        """Starts anew, as at the beginning."""
        self._last_time, self.steps, self._seconds = None, 0, 0.0

    def seconds_a_step(self) -> float:
        return self._seconds / max(self.steps, 1)

    def images_per_second(self) -> float | None:
        """None as long as there is nothing to tell it from."""
        return self._batch_size / self.seconds_a_step() if self.steps else None


def duration(seconds: float) -> str:
    """3 days 4:05:06, or 4:05:06."""
    days, seconds = divmod(round(seconds), 86_400)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days} days {clock}" if days else clock


def beginning(config: ConfigDict, workdir: str, step: int) -> str:
    text = f"{config.name}, recipe {config.recipe}, in {workdir}"
    return f"{text}: resuming after step {step:,}" if step else text


def forecast(forecast: Forecast, evaluations: int, step: int) -> str:
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
    """What there is at the end, and where."""
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
    """A line about a step of a run and of its phase, which ends after `phase_end` steps.

    `later` is the time of what follows this phase, in seconds, if that is known.
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
