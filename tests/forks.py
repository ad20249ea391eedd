"""Runs programs of launch/ in forks of one process, which has imported what is slow to import.

Reads lines of JSON from standard input: a list of [program, argument, ...], the folder and the
environment to run them in. Answers each with a line: a list of [exit code, standard output,
standard error]. Variables that jax reads when it is imported have no effect here.
"""

import gc
import json
import os
import pathlib
import runpy
import signal
import sys
import tempfile

LAUNCH = pathlib.Path(__file__).resolve().parents[1] / "launch"
sys.path.insert(0, str(LAUNCH))

import _checkout

_checkout.prepare()

import grain.python  # noqa: F401
import orbax.checkpoint  # noqa: F401

from lavae_jax import gallery  # noqa: F401
from lavae_jax.training import loop  # noqa: F401

SECONDS = 300  # after which a program is killed


def run(program: str, *arguments: str) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(error.fileno(), 2)
            signal.alarm(SECONDS)
            sys.argv = [str(LAUNCH / program), *arguments]
            try:
                runpy.run_path(sys.argv[0], run_name="__main__")
            except SystemExit as end:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(end.code or 0)  # exit handlers are the parent's
        _, status = os.waitpid(child, 0)
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode())
    return os.waitstatus_to_exitcode(status), *texts


if __name__ == "__main__":
    gc.freeze()
    for line in sys.stdin:
        cases, folder, environment = json.loads(line)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        print(json.dumps([run(*case) for case in cases]), flush=True)
