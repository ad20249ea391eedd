"""A LAVAE whose weights are set by hand, so that what it must do is known exactly.

It detects two kinds of objects: a foreground pixel, and one with another to its right. The
location network responds to foreground pixels (of two neighbours, the left one is the peak);
the first number of the appearance tells whether the right neighbour is foreground.
"""

import json
import pathlib

import jax
import numpy as np

from configs import mnist1k
from lavae_jax import checkpoints, model_files
from lavae_jax.checkpoints import Checkpoint
from lavae_jax.model import initialise

PAIR = 4.0  # the first number of a pair's appearance; a single pixel's is 0


def run_config():
    config = mnist1k.get_config("tiny")
    config.model.update(latent_size=2, sprite_size=5, gamma=4.0)
    config.model.location.update(width=1, blocks=0, head_width=1, space_to_depth=1)
    config.model.appearance.update(window=5, hidden=(2,))
    config.model.decoder.update(hidden=(1,))
    return config


def arrays():
    """Named as in an exported model."""
    module = model_files.make_module(run_config())
    shapes = jax.eval_shape(lambda: initialise(module, jax.random.key(0)))
    zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
    params, stats = zeros["params"], zeros["batch_stats"]
    for layer in ("ConvLayer_0", "ConvLayer_1"):
        params["location"][layer]["Conv_0"]["kernel"][1, 1] = 1.0
        params["location"][layer]["BatchNorm_0"]["scale"][:] = 1.0
        stats["location"][layer]["BatchNorm_0"]["var"][:] = 1.0
    params["location"]["Conv_0"]["kernel"][1, 1] = 10.0  # above the threshold of 4
    params["appearance"]["kernel"][2, 3, 0, 0] = PAIR  # the pixel to the right
    params["appearance"]["Dense_0"]["kernel"][0, 0] = 1.0
    params["appearance"]["Dense_0"]["bias"][2:] = -100.0  # next to no variance
    params["decoder"]["Dense_0"]["kernel"][0, 0] = 1.0
    logits = params["decoder"]["Dense_1"]["bias"].reshape(5, 5)
    logits[:] = -20.0
    logits[2, 2], logits[2, 3] = 20.0, -10.0
    params["decoder"]["Dense_1"]["kernel"].reshape(5, 5)[2, 3] = 10.0
    return checkpoints.flatten(zeros)


def model():
    return model_files.build(run_config(), arrays())


def write_run(folder: pathlib.Path, data_dir: str) -> pathlib.Path:
    """The folder of a run that would have led to it."""
    config = run_config()
    config.dataset.data_dir = data_dir
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    (folder / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"step": s, "neg_elbo": 9.0 - s, "kl_location": s}) + "\n" for s in (1, 2)
        )
    )
    environment = {"command": [str(folder)], "git_revision": "a", "python": "3"}
    environment |= {"packages": {}, "devices": []}
    (folder / "environment.json").write_text(json.dumps(environment))
    in_run = {
        f"state.{collection}.lavae.{rest}": array
        for name, array in arrays().items()
        for collection, _, rest in [name.partition(".")]
    }
    in_run["state.params.auxiliary.decoder.Conv_0.bias"] = np.ones(1, np.float32)
    checkpoints.save(folder / "checkpoints", Checkpoint(2, in_run, {"seconds": 1.5}))
    return folder


def picture(*objects, canvas=(20, 24)):
    """An image with objects (row, column, is_pair)."""
    image = np.zeros((*canvas, 1), np.float32)
    for row, column, is_pair in objects:
        image[row, column : column + 1 + is_pair] = 1.0
    return image
