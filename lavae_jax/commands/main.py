"""The console script `lavae`."""

import importlib
import sys

from lavae_jax.commands import startup

COMMANDS = {
    "demo": "decompose new scenes with shipped weights, edit them, and draw the result",
    "show": "show images as a model would see them, and propose settings to train with",
    "train": "train a model",
    "infer": "count and locate the objects of images",
    "evaluate": "evaluate a trained model on test scenes",
    "export": "write a trained model without its optimiser and auxiliary VAE",
    "playground": "edit scenes in the browser",
}


def usage() -> str:
    """Lists the commands.

    Returns:
        The text of `lavae --help`.
    """
    width = max(map(len, COMMANDS))
    lines = [f"  lavae {name:{width}}  {text}" for name, text in COMMANDS.items()]
    title = "LAVAE: count, locate and edit the objects of images, without labels."
    return "\n".join([title, "", *lines, "", "lavae COMMAND --help lists the flags."])


def main() -> None:
    """Runs the command that is named first, such as `lavae train`."""
    startup.prepare()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("", "-h", "--help", "help"):
        print(usage())
        sys.exit(0 if name else 1)
    if name not in COMMANDS:
        sys.exit(f"error: there is no command {name!r}\n\n{usage()}")
    sys.argv = [f"lavae {name}", *sys.argv[2:]]
    try:
        command = importlib.import_module(f"lavae_jax.commands.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lavae_jax"):
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'lavae_jax[{_extra(name)}]'")
    command.run()


def _extra(command: str) -> str:
    """The extra of the package that a command needs."""
    extras = {"demo": "figures", "playground": "playground", "evaluate": "train,data"}
    return extras.get(command, "train")


if __name__ == "__main__":
    main()
