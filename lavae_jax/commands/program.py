"""What the programs have in common: flags, configs, output files, and short error messages.

Compiled programs are cached for the next start. `startup` has what must precede all other imports.
"""

import functools
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

import jax
from absl import app, flags, logging

import lavae_jax
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
    """Parses the flags and calls `main`; exits with 1 and a message if that fails.

    Args:
        main: the program. With `positional`, it takes a list of the arguments that are not flags.
        positional: whether there may be arguments that are not flags.
        connect: connects this process with the others of a job. It is called before a config is
            made: the default recipe depends on the devices, and a process that has looked at its
            devices can no longer connect.
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

    # For --help.
    command = sys.modules[main.__module__]
    sys.modules["__main__"].__doc__ = command.__doc__
    for module in (command, sys.modules[__name__]):
        for flag in flags.FLAGS.get_key_flags_for_module(module):
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    app.run(checked, flags_parser=functools.partial(_parse, connect=connect))


def _cache_compiled_programs() -> None:
    if not CACHE.value:
        jax.config.update("jax_enable_compilation_cache", False)
    elif not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]  # by setattr
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(home) / "lavae_jax"))


def _parse(argv: list[str], connect: Callable[[list[str]], None] | None) -> list[str]:
    """Parses the flags; a missing config or an unknown field of it is an error like any other."""
    try:
        argv = list(map(_find_config, _with_equals(argv)))
        if connect is not None:
            _connect(connect, argv)
        return flags.FLAGS(argv)
    except flags.Error as error:
        message = str(error)
        if "Traceback" in message:  # from the config's own code; its last line is the error
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
    """Replaces --config NAME by --config=NAME."""
    if "--config" not in argv[:-1]:
        return argv
    k = argv.index("--config")
    return [*argv[:k], f"--config={argv[k + 1]}", *argv[k + 2 :]]


def name() -> list[str]:
    """Returns the words that start this program.

    Returns:
        Such as ["python", "launch/train.py"] or ["lavae", "train"].
    """
    is_script = sys.argv[0].endswith(".py")
    return [os.path.basename(sys.executable), sys.argv[0]] if is_script else sys.argv[0].split()


def _find_config(word: str) -> str:
    """Replaces --config=NAME by the path of the package's config; other words are unchanged."""
    if not word.startswith("--config="):
        return word
    name, colon, recipe = word.removeprefix("--config=").partition(":")
    path = name if os.path.isfile(name) else recipes.path(name)
    if path is None:
        known = ", ".join(recipes.names())
        raise flags.Error(f"{word}: there is no such file; expected a path or one of {known}")
    return f"--config={path}{colon}{recipe}"


def output_file(path: str, suffixes: Sequence[str] = (), flag: str = "output") -> pathlib.Path:
    """Checks a file to write before any work is done.

    Args:
        path: path of the file.
        suffixes: endings that are allowed; by default, any.
        flag: the flag that names the file, for error messages.

    Returns:
        The path.

    Raises:
        OSError: the file cannot be written.
        UsageError: its ending is not allowed.
    """
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
    """Checks a folder to write to before any work is done.

    Args:
        path: path of the folder, which need not exist.
        flag: the flag that names the folder, for error messages.

    Returns:
        The path.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder = pathlib.Path(path)
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    _check_writable(f"--{flag}={path}", there)
    return folder


def _check_writable(given: str, folder: pathlib.Path) -> None:
    if not folder.is_dir():
        raise NotADirectoryError(f"{given}: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{given}: {folder} cannot be written to")


def check_is_binary(name: str, model: lavae_jax.Model) -> None:
    """Checks that a program that draws and edits binary scenes can use a model.

    Args:
        name: the name of the model, for error messages.
        model: the model.

    Raises:
        UsageError: the model sees grey levels.
    """
    if model.preprocessing.levels == "grey":
        raise app.UsageError(
            f"--checkpoint={name} sees grey levels of images that it zooms, but this program edits "
            "scenes of binary pixels; `lavae infer --overlay=FOLDER` shows what the model finds"
        )
