"""Signal handling during a run."""

import os
import signal
import threading
from typing import Any


class StopRequest:
    """A context in which SIGTERM and SIGINT end the training loop only after its current step.

    Python's own handlers run only when XLA returns, which may take minutes during compilation. Each
    signal therefore wakes a thread, which reports it at once. A Ctrl-C after an earlier signal of
    either kind ends the process immediately.

    Attributes:
        signal: the number of the signal received, if any.
    """

    def __init__(self):
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        self._waker, self._previous_waker = waker, signal.set_wakeup_fd(waker)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, lambda number, frame: None)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_waker)
        os.close(self._waker)  # this ends the thread
        self._thread.join()
        os.close(self._woken)

    def _listen(self) -> None:
        while number := os.read(self._woken, 1):
            if number[0] in self._previous:
                self._note(number[0])

    def _note(self, number: int) -> None:
        if self.signal is not None and number == signal.SIGINT:
            _print("stopped at once; the newest checkpoint is intact")
            os._exit(128 + number)
        self.signal = number
        again = " (Ctrl-C again stops at once, without saving)" if number == signal.SIGINT else ""
        _print(f"stop requested: finishing this step and writing a checkpoint first{again}")


def _print(text: str) -> None:
    """Prints without `print`, whose lock the main thread may hold."""
    os.write(1, f"{text}\n".encode())
