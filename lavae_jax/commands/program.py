"""What the programs have in common: flags, configs, output files, and errors as one sentence.

Compiled programs are cached for the next start. What comes before any import is in `startup`.
"""

import functools
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

import jax
from absl import app, flags, logging

from lavae_jax import recipes
from lavae_jax.errors import UserError

CACHE = flags.DEFINE_bool(
    "compilation_cache",
    True,
    "Keep compiled programs in the user's cache folder (or JAX_COMPILATION_CACHE_DIR).",
)
EXPECTED = (OSError, UserError)


def run(
    main,
    *,
    positional: bool = False,
    connect: Callable[[list[str]], None] | None = None,
) -> None:
    """Parses the flags and calls main(). It leaves with 1 and a sentence if that fails.

    With `positional`, main is given the words that are not flags; else there may be none.
    `connect` joins the other processes of a job. It is called before a config is made, because
    the default recipe depends on the devices, and a process that has looked at its devices can
    no longer join others.
    """

    def checked(argv: list[str]) -> int | None:
        logging.set_verbosity(logging.WARNING)
        _cache_compiled_programs()
        if len(argv) > 1 and not positional:
            raise app.UsageError(f"unexpected argument {argv[1]!r}")
        try:
            return main(argv[1:]) if positional else main()
        except EXPECTED as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            if jax.distributed.is_initialized():
                os._exit(1)  # a normal exit waits for the other processes, and they for us
            return 1

    # What --help shows.
    command = sys.modules[main.__module__]
    sys.modules["__main__"].__doc__ = command.__doc__
    for module in (command, sys.modules[__name__]):
        for flag in flags.FLAGS.get_key_flags_for_module(module):
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    app.run(checked, flags_parser=functools.partial(_parse, connect=connect))


def _cache_compiled_programs() -> None:
    if not CACHE.value:
        jax.config.update("jax_enable_compilation_cache", False)
    elif not jax.config.jax_compilation_cache_dir:
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(home) / "lavae_jax"))


def _parse(argv: list[str], connect: Callable[[list[str]], None] | None) -> list[str]:
    """The flags; a config that is not there, or has no such field, is a mistake like others."""
    try:
        argv = list(map(_find_config, _with_equals(argv)))
        if connect is not None:
            _connect(connect, argv)
        return flags.FLAGS(argv)
    except flags.Error as error:
        message = str(error)
        if "Traceback" in message:  # of the config's own code: its last line says what is wrong
            message = message.strip().splitlines()[-1].partition(": ")[2]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = str(error.args[0]).replace("\\n", " ").replace("\\'", "'")
        message = message.removeprefix("'").removesuffix("'")
        message = f"in --config: {' '.join(message.split())}"
    print(f"error: {message}\n({argv[0]} --help lists the flags)", file=sys.stderr, flush=True)
    if jax.distributed.is_initialized():
        os._exit(1)  # a normal exit waits for the other processes, and they for us
    raise SystemExit(1)


def _connect(connect: Callable[[list[str]], None], argv: list[str]) -> None:
    try:
        connect(argv)
    except (app.UsageError, OSError, ValueError) as error:
        raise flags.Error(str(error)) from error


def _with_equals(argv: list[str]) -> list[str]:
    """--config NAME as --config=NAME."""
    if "--config" not in argv[:-1]:
        return argv
    k = argv.index("--config")
    return [*argv[:k], f"--config={argv[k + 1]}", *argv[k + 2 :]]


def name() -> list[str]:
    """The words that start this program."""
    is_script = sys.argv[0].endswith(".py")
    return [os.path.basename(sys.executable), sys.argv[0]] if is_script else sys.argv[0].split()


def _find_config(word: str) -> str:
    """--config=NAME with the file of that name in the package; other words as they are."""
    if not word.startswith("--config="):
        return word
    name, colon, recipe = word.removeprefix("--config=").partition(":")
    path = name if os.path.isfile(name) else recipes.path(name)
    if path is None:
        known = ", ".join(recipes.names())
        raise flags.Error(f"{word}: there is no such file; expected a path or one of {known}")
    return f"--config={path}{colon}{recipe}"


def output_file(path: str, suffixes: Sequence[str] = (), flag: str = "output") -> pathlib.Path:
    """A file to write, refused before the work is done if that will not be possible."""
    file = pathlib.Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"--{flag}={path} is a folder; name a file")
    if suffixes and file.suffix not in suffixes:
        expected = ", ".join(suffixes)
        raise app.UsageError(f"--{flag}={path}: the ending must be one of {expected}")
    _check_writable(f"--{flag}={path}", file.absolute().parent)
    return file


PICTURES = (".png", ".pdf", ".svg", ".jpg")


def output_folder(path: str, flag: str = "output") -> pathlib.Path:
    """The same for a folder, which need not exist yet."""
    folder = pathlib.Path(path)
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    _check_writable(f"--{flag}={path}", there)
    return folder


def _check_writable(given: str, folder: pathlib.Path) -> None:
    if not folder.is_dir():
        raise NotADirectoryError(f"{given}: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{given}: {folder} cannot be written to")
