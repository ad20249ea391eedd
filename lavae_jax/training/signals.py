"""Being asked to stop."""

import os
import signal
from typing import Any


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
            _print("stopped at once; the newest checkpoint is whole")
            os._exit(128 + number)  # whatever XLA is doing in other threads
        self.signal = number
        again = " (Ctrl-C once more: at once, without it)" if number == signal.SIGINT else ""
        _print(f"asked to stop: the step is finished and a checkpoint written first{again}")


def _print(text: str) -> None:
    """Not by print, whose lock the interrupted code may hold."""
    os.write(1, f"{text}\n".encode())
