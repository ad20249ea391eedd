"""What the configs share. A number from the paper stands here once, with its source."""

import dataclasses

from ml_collections import ConfigDict

from lavae_jax.model import ModelConfig
from lavae_jax.networks import AppearanceConfig, DecoderConfig, LocationConfig
from lavae_jax.vae import AuxiliaryConfig, BaselineConfig

RECIPES = ("paper", "cpu", "tiny")


def _check(recipe: str) -> None:
    if recipe not in RECIPES:
        raise ValueError(f"there is no recipe {recipe!r}; there are {', '.join(RECIPES)}")


def _base(name: str, recipe: str, dataset: str) -> ConfigDict:
    """Data, duration and bookkeeping."""
    _check(recipe)
    return ConfigDict(
        {
            "name": name,
            "recipe": recipe,
            "seed": 0,
            "dataset": {
                "name": dataset,
                "overrides": "",  # such as canvas=96,max_count=5; see build_data.py --set
                "data_dir": "",  # TFDS's own default
                "mnist_dir": "",
                "held_out": 1_000,  # scenes at the end of `train` kept for evaluation
            },
            "batch_size": 64,  # App. B
            "num_train_steps": 100_000,
            # Every so many steps and at the end; 0 for never.
            "log_every_steps": 100,
            "eval_every_steps": 2_000,
            "checkpoint_every_steps": 1_000,
            "keep_checkpoints": 3,
        }
    )


def _few_steps(config: ConfigDict) -> None:
    """For tests: nothing takes long."""
    config.dataset.overrides = "num_train=1200,num_test=60,num_crowd=40"
    config.dataset.held_out = 80
    config.batch_size = 16
    config.num_train_steps = 60
    config.log_every_steps = 10
    config.eval_every_steps = 30
    config.checkpoint_every_steps = 20


def lavae(
    name: str,
    recipe: str,
    *,
    dataset: str,
    location_learning_rate: float,
    decoder_width: int = 256,
    appearance_steps: int = 26_400,
    **model,
) -> ConfigDict:
    """LAVAE on a data set.

    `model` says what differs from multi-MNIST, `decoder_width` and `appearance_steps` what
    differs in the `cpu` recipe.
    """
    config = _base(name, recipe, dataset)
    channels = model.get("channels", 1)
    networks, auxiliary = {}, AuxiliaryConfig(channels=channels)
    if recipe != "paper":
        networks = {
            "location": LocationConfig(width=24, head_width=24, space_to_depth=4),
            "appearance": AppearanceConfig(
                kind="window", form="windows", window=model.get("sprite_size", 17) + 4
            ),
            "decoder": DecoderConfig(kind="dense", hidden=(decoder_width,) * 2),
        }
        auxiliary = AuxiliaryConfig(channels=channels, space_to_depth=6)
    config.kind = "lavae"
    config.model = ConfigDict(dataclasses.asdict(ModelConfig(**model, **networks)))
    config.auxiliary = ConfigDict(dataclasses.asdict(auxiliary))
    config.optimizer = ConfigDict(
        {
            "learning_rate": 1e-3,  # App. B
            "decay_steps": 0,  # to 0 along half a cosine; 0 for constant
            "location_learning_rate": location_learning_rate,  # App. B
            "location_decay_rate": 0.01,  # App. B: by a factor of 100 ...
            "location_decay_steps": 100_000,  # ... in 100k steps
        }
    )
    config.temperature = ConfigDict({"start": 0.5, "end": 0.02, "steps": 100_000})  # App. B
    config.warmup = ConfigDict(
        {
            "kind": "joint",
            "steps": 30_000,  # App. B
            "anneal_steps": 30_000,  # App. B
            "auxiliary_weight": 1.0,
            "force_one_end": 0.1,  # App. B: the probability of n = 1 after all that
        }
    )
    # Objects that a training step has room for: slots in an image, and places for each
    # image of a device's batch. Scenes have 1.5 objects on average; what finds no place
    # is cut from the step and reported as `overflow`.
    config.budget = ConfigDict({"slots": config.model.max_objects, "places": 3.0})
    if recipe in ("cpu", "tiny"):
        config.budget.update(slots=4, places=2.5)
    if recipe == "cpu":
        _phases(config, appearance_steps)
    if recipe == "tiny":
        _few_steps(config)
        config.model.location.update(width=8, head_width=8, blocks=2)
        config.model.appearance.update(window=17, hidden=(32,))
        config.model.decoder.update(hidden=(32,))
        config.model.latent_size = 8
        config.auxiliary.width = 8
        config.warmup.update(steps=30, anneal_steps=20)
    return config


def _phases(config: ConfigDict, appearance_steps: int) -> None:
    """The schedule for 2 cores: where objects are, then what they look like."""
    config.batch_size = 32
    # Objects' centres are at least sprite_size - 2 pixels apart.
    config.model.update(peak_radius=config.model.sprite_size // 2 - 2, support="peaks")
    auxiliary = {"steps": 1_200, "learning_rate": 6e-3}
    peaks = {
        "steps": 2_400,
        "learning_rate": 6e-3,  # falls to 0 along half a cosine
        "threshold": 1.0,  # of the mean KL map, in nats
        "shifts": 2,  # in each direction
        "centrings": 2,  # moves of a peak to the centre of mass around it
        "weight": 20.0,
    }
    config.warmup = ConfigDict({"kind": "phased", "auxiliary": auxiliary, "peaks": peaks})
    config.num_train_steps = auxiliary["steps"] + peaks["steps"] + appearance_steps
    config.optimizer = ConfigDict({"learning_rate": 1e-2, "decay_steps": appearance_steps})
    del config.temperature


def baseline(name: str, recipe: str, *, dataset: str, channels: int = 1) -> ConfigDict:
    """The fully convolutional β-VAE."""
    config = _base(name, recipe, dataset)
    config.kind = "baseline"
    config.model = ConfigDict(dataclasses.asdict(BaselineConfig(channels=channels)))
    config.optimizer = ConfigDict({"learning_rate": 1e-3, "decay_steps": 0})
    config.beta = ConfigDict({"start": 0.0, "end": 1.0, "steps": 100_000})  # App. B
    if recipe in ("cpu", "tiny"):
        config.model.update(space_to_depth=8)
        config.batch_size = 16
        config.num_train_steps = 40_000
        config.beta.steps = 5_000
        config.optimizer.update(learning_rate=1e-2, decay_steps=40_000)
    if recipe == "tiny":
        _few_steps(config)
        config.model.width = 8
        config.beta.steps = 40
    return config
