"""What a run says on the console: its speed, the time left, how it is doing."""

import time

import jax
from ml_collections import ConfigDict

from lavae_jax.training.tasks import Phase


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
    if step:
        text += f": going on from step {step:,}"
    if jax.devices()[0].platform == "cpu" and config.recipe == "paper":
        text += (
            "\nThis is the paper's own setting, made for accelerators: on 2 CPU cores a step of "
            "mnist1k takes 47 s, and its run 54 days. For CPUs there is the recipe cpu (20 to 50 "
            "minutes there):\n"
            f"  python launch/train.py --config=configs/{config.name}.py:cpu"
        )
    return text


def forecast(config: ConfigDict, phase: Phase, clock: Clock) -> str:
    seconds = clock.seconds_a_step()
    text = (
        f"{seconds:.3f} s a step on {jax.device_count()} {jax.devices()[0].device_kind} "
        f"device(s): {config.num_train_steps:,} steps take about "
        f"{duration(seconds * config.num_train_steps)} and compilation"
    )
    if phase.end and phase.end < config.num_train_steps:
        text += f", if all were like those of this phase ({phase.name}, to step {phase.end:,})"
    return text


def progress(
    config: ConfigDict,
    phase: Phase,
    step: int,
    values: dict[str, float],
    held_out: dict[str, float],
    clock: Clock,
) -> str:
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
