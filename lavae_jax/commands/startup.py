"""What a program does before any slow import."""

import atexit
import gc
import os
import signal

from lavae_jax.commands import xla


def prepare() -> None:
    """Prepares the process of a program. Entry points call it first, before jax is imported.

    Afterwards, Ctrl-C ends the program with one word instead of a traceback, even while it starts;
    XLA's flags are set; and the program exits quickly.
    """
    signal.signal(signal.SIGINT, _interrupt)
    xla.set_flags()
    # At exit, the interpreter collects garbage among all objects of jax and other packages, but not
    # among frozen ones. CPU seconds from the last line of `lavae infer` to its exit: 0.05 instead
    # of 0.40 (os._exit: 0.02); of `lavae demo`: 0.10 instead of 0.90 (0.05).
    atexit.register(gc.freeze)


def _interrupt(number, _frame):
    os.write(2, b"\ninterrupted\n")
    os._exit(128 + number)  # a normal exit may crash while XLA's threads are computing
