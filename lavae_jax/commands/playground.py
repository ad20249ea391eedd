"""Opens a page in the browser on which scenes can be decomposed and edited.

    pip install "lavae_jax[playground]"
    lavae playground                        # shipped weights
    lavae playground --checkpoint=runs/images-cpu --port=9000 --nobrowser

Choose a model and a scene, drag objects, change their appearance, and see how the bound on log p(x)
changes. The server listens on this machine only. With --host=0.0.0.0, everyone who can reach this
machine can use it, without a password and without encryption.
"""

import errno
import socket
import sys
import threading
import time
import webbrowser

import numpy as np
from absl import app, flags

from lavae_jax.commands import program, scene_data

try:
    import uvicorn

    from lavae_jax.playground import engine, server
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed: pip install 'lavae_jax[playground]'")

import lavae_jax
from lavae_jax import model_files
from lavae_jax.errors import UserError

CHECKPOINT = flags.DEFINE_list(
    "checkpoint",
    None,
    "Models, separated by commas: runs' folders or the names of shipped weights [all shipped].",
)
HOST = flags.DEFINE_string(
    "host", "127.0.0.1", "The address to listen on; any but the default opens the page to others."
)
PORT = flags.DEFINE_integer("port", 8777, "The port; 0 for any that is free.", 0, 65_535)
BROWSER = flags.DEFINE_bool("browser", True, "Open the page in the browser.")

FIRST = "mnist1k"  # the first of the shipped models
LOCAL = ("127.0.0.1", "localhost", "::1")


class PlaygroundError(UserError):
    """The playground cannot start; the message says why."""


def load_models() -> dict[str, lavae_jax.Model]:
    """Loads the models that the flags name.

    Returns:
        The models by name. The first is warmed up before the page opens.

    Raises:
        UsageError: all of them are baselines, or one sees grey levels.
    """
    names = CHECKPOINT.value or sorted(model_files.names(), key=lambda name: name != FIRST)
    loaded = {name: lavae_jax.load(name) for name in names}
    models = {name: m for name, m in loaded.items() if isinstance(m, lavae_jax.Model)}
    if not models:
        raise app.UsageError("--checkpoint names only baselines, which have no objects")
    for name, model in models.items():
        program.check_is_binary(name, model)
    return models


def make_draw(models: dict[str, lavae_jax.Model]):
    """Makes a function that draws new scenes of the data sets that models were trained on.

    Args:
        models: the models by name.

    Returns:
        `draw(name, count, seed)`, an image [H, W, C]; None for a model without a data set.
    """
    datasets = scene_data.find()
    builders = {
        name: datasets.demo_builder(**datasets.options(model.config.dataset))
        for name, model in models.items()
        if datasets and model.config.dataset.name != "images"
    }

    def draw(name: str, count: int, seed: int) -> np.ndarray | None:
        if name not in builders:
            return None
        return builders[name].draw(1, seed, (count, count)).image[0]

    return draw


def listen() -> socket.socket:
    """Opens the port before the models are loaded, so that a port in use is noticed at once.

    Returns:
        A listening socket.

    Raises:
        PlaygroundError: the address or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in HOST.value else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST.value, PORT.value))
        opened.listen(128)
    except socket.gaierror as error:
        raise PlaygroundError(
            f"--host={HOST.value}: {error.strerror}; expected an address of this machine"
        ) from error
    except OSError as error:
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = "try --port=0" if is_port else "expected an address of this machine"
        raise PlaygroundError(
            f"--host={HOST.value} --port={PORT.value}: {error.strerror}; {advice}"
        ) from error
    return opened


def hosts(port: int) -> list[str]:
    """Lists the values of the header Host that the server accepts.

    Any other name may belong to an attacker, who directs browsers here. A numeric address cannot,
    so all of them are accepted if the server is open to others.

    Args:
        port: the port of the server.

    Returns:
        Names with the port.
    """
    names = {"127.0.0.1", "localhost", "[::1]"}
    if HOST.value not in LOCAL:
        names |= {HOST.value, socket.gethostname(), socket.getfqdn(), server.ANY_ADDRESS}
    return [f"{name}:{port}" for name in names] + (sorted(names) if port == 80 else [])


def main():
    """Warms the models up, and serves the page."""
    started = time.monotonic()
    opened = listen()
    port = opened.getsockname()[1]
    models = load_models()
    made = engine.Engine(models, make_draw(models))
    first, *rest = models
    print(f"warming up {first} ...", flush=True)
    made.warm(first)
    ready = [first]

    def warm_others():
        for name in rest:
            made.warm(name)
            ready.append(name)

    threading.Thread(target=warm_others, daemon=True).start()
    config = uvicorn.Config(
        server.make_app(made, hosts(port), lambda: list(ready)),
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    address = "127.0.0.1" if HOST.value in ("0.0.0.0", "::") else HOST.value
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}/"
    print(f"ready after {time.monotonic() - started:.1f} s: {url}  (Ctrl-C to stop)", flush=True)
    if HOST.value not in LOCAL:
        print("Everyone who can reach this machine can use it: there is no password.", flush=True)
    if BROWSER.value:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    uvicorn.Server(config).run(sockets=[opened])


def run():
    """Runs the program."""
    program.run(main)
