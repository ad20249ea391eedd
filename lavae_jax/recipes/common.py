"""The paper's settings, which all configs share, and the recipes that change them.

`lavae` and `baseline` follow Appendix B to the letter and name the source of each number. Where no
source is named, the paper is silent, and docs/design-decisions.md gives the reason.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

Recipe = Callable[..., None]  # changes its first argument, the config of Appendix B

BY_DEVICE = ""  # stands for the recipe that `default_recipe` chooses
# `cpu` is the default on every device. `thin`, a small version of `paper`, counts every object, but
# has not reached the likelihood of `cpu` (docs/experiments.md, "At full resolution").
ACCELERATOR_RECIPE = "cpu"


def default_recipe() -> str:
    """Chooses the recipe for the devices of this machine.

    Returns:
        The name of a recipe.
    """
    return "cpu" if jax.devices()[0].platform == "cpu" else ACCELERATOR_RECIPE


def make(config: ConfigDict, recipe: str, **recipes: Recipe) -> ConfigDict:
    """Applies a recipe to the settings of Appendix B.

    Args:
        config: changed in place.
        recipe: the name of the recipe; if empty, that of `default_recipe`.
        **recipes: all recipes of the config, by name.

    Returns:
        The config.

    Raises:
        ValueError: if there is no such recipe.
    """
    recipe = recipe or default_recipe()
    if recipe not in recipes:
        raise ValueError(f"there is no recipe {recipe!r}; expected one of {', '.join(recipes)}")
    config.recipe = recipe
    recipes[recipe](config)
    return config


def as_described(config: ConfigDict) -> None:
    """For accelerators: the settings of Appendix B, unchanged.

    Args:
        config: unchanged.
    """


# --- the paper ---------------------------------------------------------------


def _base(name: str, dataset: str, kind: str) -> ConfigDict:
    """Data, duration and bookkeeping."""
    return ConfigDict(
        {
            "name": name,
            "recipe": "described",
            "kind": kind,
            "seed": 0,
            "dataset": {
                "name": dataset,
                "overrides": "",  # such as canvas=96,max_count=5; see build_data.py --set
                "data_dir": "",  # TFDS's own default
                "mnist_dir": "",
                "held_out": 1_000,  # scenes at the end of `train` kept for evaluation
            },
            "batch_size": 64,  # App. B
            "num_train_steps": placeholder(int),  # if set, the run ends after this many steps
            # At each multiple of this many steps and at the end; 0 for never.
            "log_every_steps": 100,
            "eval_every_steps": 2_000,
            "checkpoint_every_steps": 1_000,
            "keep_checkpoints": 3,
        }
    )


def lavae(
    name: str, *, dataset: str, channels: int, sprite_size: int, location_learning_rate: float
) -> ConfigDict:
    """Makes LAVAE's settings of Appendix B.

    Args:
        name: the config's name.
        dataset: its name, such as multi_mnist/1k.
        channels: C.
        sprite_size: h and w.
        location_learning_rate: the initial learning rate of the location network.

    Returns:
        The config, without a recipe.
    """
    config = _base(name, dataset, "lavae")
    config.model = {
        "channels": channels,
        "sprite_size": sprite_size,  # App. B: 17 for multi-MNIST, 21 for multi-dSprites
        "max_objects": 10,  # App. B: M
        "latent_size": 32,  # App. B: L
        "gamma": 4.0,  # App. B
        "threshold": 4.0,  # App. B: points above 4 γ are counted
        "peak_radius": 3,
        "support": "pixels",  # Section 2: Cat(D, b)
        "prior": {"kind": "normal"},  # Section 2: p(z_app) = N(0, I)
        # App. B: a residual network of 4 blocks, then 3 convolutional layers.
        "location": {"width": 48, "blocks": 4, "head_width": 32, "space_to_depth": 1},
        # App. B: an identical residual network, then a convolution.
        "appearance": {"network": "residual", "computed_on": "map", "width": 48, "blocks": 4},
        # App. B: a fully connected layer, a convolution, 3 residual blocks, a convolution.
        "decoder": {
            "network": "residual",
            "width": 48,
            "blocks": 3,
            "seed_size": 8,
            "seed_channels": 16,
        },
    }
    config.auxiliary = {"width": 48, "latents": 8, "space_to_depth": 1}  # App. B: 11 x 11 x 8
    config.optimizer = {
        "learning_rate": 1e-3,  # App. B
        "schedule": "constant",  # or cosine: to 0 at the end of the run, along half a cosine
    }
    config.curriculum = {
        "phases": ("warmup", "elbo"),  # of 100k steps in all
        "warmup": {
            "steps": 60_000,  # App. B: 30k, and 30k of annealing
            "anneal_steps": 30_000,
            "auxiliary_weight": 1.0,
            "force_one_end": 0.1,  # App. B: the probability that n is forced to 1 in the end
        },
        "elbo": {"steps": 40_000},
        "temperature": {"start": 0.5, "end": 0.02, "steps": 100_000},  # App. B: τ
        "location": {
            "learning_rate": location_learning_rate,  # App. B: 1e-4, 5e-4 for multi-dSprites
            "decay_rate": 0.01,  # App. B: by a factor of 100 ...
            "decay_steps": 100_000,  # ... in 100k steps
        },
    }
    # The object budget of a training step: `slots` limits the objects of an image, and
    # `objects_per_image` their mean over the batch of a device. Scenes have 1.5 objects on average.
    # Objects beyond the budget are left out of the step and reported as `overflow`.
    config.budget = {"slots": 10, "objects_per_image": 3.0}
    return config


def baseline(name: str, *, dataset: str, channels: int) -> ConfigDict:
    """Makes the settings of the baseline, a fully convolutional β-VAE (App. B).

    Args:
        name: the config's name.
        dataset: its name, such as multi_mnist/1k.
        channels: C.

    Returns:
        The config, without a recipe.
    """
    config = _base(name, dataset, "baseline")
    config.model = {
        "channels": channels,
        "width": 64,  # App. B: the encoder gives a tensor of 64 x 8 x 8
        "latents": 16,  # App. B: d_VAE = 1024 = 16 x 8 x 8
        "space_to_depth": 1,
    }
    config.optimizer = {"learning_rate": 1e-3, "schedule": "constant"}
    config.curriculum = {
        "phases": ("crops", "elbo"),
        "crops": {"side": 32, "steps": 0},  # squares with foreground
        "elbo": {"steps": 100_000},
        "beta": {"start": 0.0, "end": 1.0, "steps": 100_000},  # App. B
    }
    return config


# --- recipes -----------------------------------------------------------------


def lavae_recipes(mixture: dict[str, Any], **cpu: Any) -> dict[str, Recipe]:
    """Lists LAVAE's recipes.

    Args:
        mixture: settings of the recipe `mixture`; see `lavae_mixture`.
        **cpu: settings of the recipe `cpu`, on which other recipes build; see `lavae_cpu`.

    Returns:
        The recipes by name.
    """
    return {
        "paper": lavae_paper,
        "described": as_described,
        "thin": lavae_thin,
        "cpu": functools.partial(lavae_cpu, **cpu),
        "mixture": functools.partial(lavae_mixture, **mixture, **cpu),
        "sleep": functools.partial(lavae_sleep, **cpu),
        "joint": lavae_joint,
        "tiny": lavae_tiny,
    }


def lavae_paper(config: ConfigDict) -> None:
    """For accelerators: Appendix B with the changes that its training turned out to need.

    docs/design-decisions.md has the reason for each.

    Args:
        config: changed in place.
    """
    config.model.update(gamma=32.0, threshold=2.0)
    config.model.peak_radius = _third(config.model.sprite_size)
    config.model.exclusion_radius = _half_a_sprite(config)
    # These reduce memory traffic (docs/platforms.md).
    config.model.update(activations="bfloat16", packed_pixels=2)
    config.eval_every_steps = 1_000  # the first evaluation shows whether a run is healthy


def lavae_thin(config: ConfigDict, *, num_steps: int = 16_000) -> None:
    """For two CPU cores: the recipe `paper` with smaller networks and batches, and fewer steps.

    The appearance network runs on windows, which at hard locations gives the same results as on the
    map, in half the time. The warm-up and the annealing take a tenth of the steps each, instead of
    the paper's three tenths. Learning rates are higher, and fall to 0 along half a cosine.

    Args:
        config: changed in place.
        num_steps: steps of the whole run.
    """
    lavae_paper(config)
    config.model.update(activations="float32", packed_pixels=1)
    config.model.location.update(width=8, head_width=8)
    config.model.appearance.update(width=16, computed_on="windows")
    config.model.decoder.update(width=24, seed_channels=64)
    config.auxiliary.width = 16
    config.batch_size = 8
    config.budget.update(slots=4, objects_per_image=2.5)
    config.optimizer = {"learning_rate": 1e-2, "schedule": "cosine"}
    _joint_steps(config, num_steps, warmup=num_steps // 10, anneal=num_steps // 10)
    config.curriculum.temperature.steps = num_steps
    config.curriculum.location.learning_rate = 4e-3


def lavae_cpu(
    config: ConfigDict, *, decoder_width: int = 256, appearance_steps: int = 54_000
) -> None:
    """For two CPU cores: small networks; first the location network is trained, then appearances.

    The learning rates of `peaks`, `appearance` and `mixture` fall to 0 along half a cosine.

    Args:
        config: changed in place.
        decoder_width: units in each hidden layer of the decoder.
        appearance_steps: steps of the phase `appearance`.
    """
    _small_networks(config, decoder_width)
    config.batch_size = 32
    config.model.update(peak_radius=_half_a_sprite(config), support="peaks")
    config.model.min_object_probability = 0.01
    del config.optimizer, config.curriculum
    config.curriculum = {
        "phases": ("auxiliary", "peaks", "appearance"),
        "auxiliary": {"steps": 1_200, "learning_rate": 6e-3},
        "peaks": {
            "steps": 4_800,
            "learning_rate": 6e-3,
            "threshold": 1.0,  # of the mean KL map, in nats
            "shifts": 2,  # in each direction
            "centrings": 2,  # moves of a peak to the centre of mass around it
            "augmented_share": 0.5,  # of the images, which are rotated and mirrored
            "positive_weight": 20.0,  # of a pixel that is marked
            "localisation_weight": 4.0,  # of distinguishing it from its 8 neighbours
        },
        "appearance": {"steps": appearance_steps, "learning_rate": 1e-2},
    }


def lavae_sleep(
    config: ConfigDict,
    *,
    steps: int = 9_000,
    steps_again: int = 0,
    resolve: bool = True,
    **cpu: int,
) -> None:
    """For two CPU cores and objects that touch: like `cpu`, but q also learns from composed scenes.

    Args:
        config: changed in place.
        steps: the steps of the phase `sleep`.
        steps_again: the steps of the phase `sleep_again`, for training images whose objects
            overlap; 0 for no such phase.
        resolve: whether the likelihood decides which of several close peaks are objects.
        **cpu: settings of the recipe `cpu`.
    """
    lavae_cpu(config, **cpu)
    config.model.location.update(width=32, blocks=4, head_width=32)
    config.model.peak_radius = _near(config.model.sprite_size)
    if resolve:
        config.model.update(peak_radius=1, resolve_radius=config.model.sprite_size // 3)
    config.model.min_object_probability = 0.5
    config.model.composition = "over"
    config.curriculum.phases = ("auxiliary", "sleep", "appearance", "overlap")
    # `threshold`, `shifts` and `centrings` find the objects that scenes are composed of, half of
    # which are rotated and mirrored.
    config.curriculum.sleep = {
        **config.curriculum.peaks,
        "steps": steps,
        # The share of objects that are drawn in another way. With 0.5, counts of objects unlike the
        # training objects are more accurate; the shipped weights were trained with 0.
        "distorted_share": 0.0,
        "learning_rate": 1.2e-2,
        "max_objects": config.model.max_objects,  # of a composed scene
        "objects": 8_192,
    }
    del config.curriculum.peaks
    if steps_again:
        config.curriculum.phases = ("auxiliary", "sleep", "sleep_again", "appearance", "overlap")
        config.curriculum.sleep_again = {"steps": steps_again, "learning_rate": 1.2e-2}
    config.curriculum.overlap = {
        "steps": 6_000,
        "learning_rate": 3e-3,
        "sleep_weight": 1.0,  # of -log q(z_app | z_loc, x) on composed scenes
        "max_neighbours": 3,  # of an object there
    }


def lavae_grey(config: ConfigDict) -> None:
    """For two CPU cores and grey images whose objects may touch: q learns from pasted scenes.

    Images are zoomed until the usual object has a diameter of 12 pixels (see `normalisation`), so
    no setting depends on the size of objects.

    Args:
        config: changed in place.
    """
    config.model.sprite_size = 31
    _small_networks(config, decoder_width=256)
    config.batch_size = 16
    config.dataset.update(levels="grey", diameter="auto")  # or the usual object's, in pixels
    config.model.update(max_objects=24, latent_size=24, support="peaks", likelihood="gaussian")
    config.model.update(peak_radius=1, min_object_probability=0.5, pixel_deviation=0.1)
    config.model.resolve_radius = 4  # a third of a typical object
    del config.optimizer, config.curriculum
    config.curriculum = {
        "phases": ("pasted", "portraits"),
        "pasted": {
            "steps": 3_000,
            "learning_rate": 6e-3,
            "positive_weight": 20.0,  # of a pixel that is marked
            "localisation_weight": 4.0,  # of distinguishing it from its 8 neighbours
            "max_objects": 21,  # of a scene
            "objects": 4_096,
        },
        "portraits": {"steps": 1_500, "learning_rate": 3e-3},
    }


def lavae_mixture(
    config: ConfigDict,
    *,
    components: int,
    steps: int = 8_000,
    learning_rate: float = 3e-3,
    **cpu: int,
) -> None:
    """For two CPU cores: the recipe `cpu`, after which a mixture p(z_app) is learned.

    Args:
        config: changed in place.
        components: K, the number of components.
        steps: the steps of the phase `mixture`.
        learning_rate: the initial learning rate of the phase `mixture`.
        **cpu: settings of the recipe `cpu`.
    """
    lavae_cpu(config, **cpu)
    config.model.prior = {"kind": "mixture", "components": components}
    config.curriculum.phases += ("mixture",)
    config.curriculum.mixture = {"steps": steps, "learning_rate": learning_rate}
    config.start_from = ""  # a trained model of the recipe cpu, which replaces the earlier phases


def lavae_stem(config: ConfigDict, *, num_steps: int = 20_000) -> None:
    """For two CPU cores: Appendix B, changing only sizes, learning rates and numbers of steps.

    Args:
        config: changed in place.
        num_steps: steps of the whole run.
    """
    _small_networks(config, decoder_width=256)
    config.batch_size = 32
    config.model.peak_radius = _half_a_sprite(config)
    config.optimizer = {"learning_rate": 1e-2, "schedule": "cosine"}
    _joint_steps(config, num_steps, warmup=2_000, anneal=2_000)
    config.curriculum.temperature.steps = 8_000
    config.curriculum.location.learning_rate = 1e-3


def lavae_joint(config: ConfigDict) -> None:
    """For two CPU cores: the paper's training of all parts at once.

    The networks start with a stem that reduces the resolution by 4, which needs three changes:
    blurred logits, which prefer no position within a cell of the stem; a larger γ, which makes the
    blurred logits sharp again; and draws that exclude the pixels around earlier draws, since the
    next-largest of smooth logits belong to the same object.

    Args:
        config: changed in place.
    """
    lavae_stem(config)
    config.model.location.blur_logits = True
    config.model.update(gamma=32.0, threshold=2.0, peak_radius=3)
    config.model.exclusion_radius = _half_a_sprite(config)
    config.curriculum.location.learning_rate = 4e-3


def lavae_tiny(config: ConfigDict) -> None:
    """For tests: the paper's training in 60 steps.

    Args:
        config: changed in place.
    """
    _small_networks(config, decoder_width=32)
    _few_steps(config)
    config.model.location.update(width=8, head_width=8)
    config.model.appearance.update(window=17, hidden=(32,))
    config.model.decoder.update(hidden=(32,))
    config.model.latent_size = 8
    config.auxiliary.width = 8
    config.curriculum.warmup.update(steps=50, anneal_steps=20)
    config.curriculum.elbo.steps = 10


def baseline_recipes(**cpu: int) -> dict[str, Recipe]:
    """Lists the baseline's recipes.

    Args:
        **cpu: settings of the recipe `cpu`; see `baseline_cpu`.

    Returns:
        The recipes by name.
    """
    return {
        "paper": as_described,
        "cpu": functools.partial(baseline_cpu, **cpu),
        "plain": baseline_plain,
        "tiny": functools.partial(baseline_tiny, **cpu),
    }


def baseline_cpu(config: ConfigDict, *, kernel: int, num_steps: int) -> None:
    """For two CPU cores: networks that need not relearn an object at each position in a cell.

    Args:
        config: changed in place.
        kernel: side of the window that a position of the grid sees and draws: that of LAVAE's
            sprites.
        num_steps: steps of the whole run.
    """
    config.model.update(architecture="glimpse", width=256, kernel=kernel)
    del config.model.space_to_depth
    config.batch_size = 16
    config.eval_every_steps = 5_000
    config.optimizer.update(learning_rate=1e-2, schedule="cosine")
    crops = num_steps * 24 // 25
    _baseline_steps(config, crops=crops, elbo=num_steps - crops, beta=5_000)


def baseline_plain(config: ConfigDict) -> None:
    """For two CPU cores: the paper's layers, all at the resolution of the latents.

    Args:
        config: changed in place.
    """
    config.model.update(space_to_depth=8)
    config.batch_size = 16
    config.optimizer.update(learning_rate=1e-2, schedule="cosine")
    _baseline_steps(config, crops=0, elbo=40_000, beta=5_000)


def baseline_tiny(config: ConfigDict, **cpu: int) -> None:
    """For tests: the recipe `cpu` in 60 steps.

    Args:
        config: changed in place.
        **cpu: settings of the recipe `cpu`.
    """
    baseline_cpu(config, **cpu)
    _few_steps(config)
    config.model.width = 8
    _baseline_steps(config, crops=30, elbo=30, beta=40)


def follow_sprite_size(config: ConfigDict) -> None:
    """Makes settings follow later changes of `sprite_size` and `max_objects`.

    Args:
        config: changed in place.
    """
    sprite, objects = config.model.get_ref("sprite_size"), config.model.get_ref("max_objects")
    # The recipe's rule for its radius, if it has one.
    for rule in (_near, _third, lambda size: size // 2):
        if config.model.peak_radius == rule(config.model.sprite_size):
            config.model.peak_radius = rule(sprite)
            break
    if "exclusion_radius" in config.model:
        config.model.exclusion_radius = sprite // 2
    if config.model.get("resolve_radius") == config.model.sprite_size // 3:
        config.model.resolve_radius = sprite // 3
    if "window" in config.model.appearance:
        config.model.appearance.window = sprite // 2 * 2 + 5  # odd
    if config.auxiliary.space_to_depth > 1:
        config.auxiliary.cell = config.auxiliary.space_to_depth = _third(sprite)
    if "sleep" in config.get("curriculum", {}):
        config.curriculum.sleep.max_objects = objects
    config.budget = {"slots": objects, "objects_per_image": objects.to_float()}


def _small_networks(config: ConfigDict, decoder_width: int) -> None:
    """Convolutions at a quarter of the resolution; fully connected layers on windows."""
    config.model.location.update(width=24, blocks=2, head_width=24, space_to_depth=4)
    config.model.appearance = {
        "network": "dense",
        "computed_on": "windows",
        "window": config.model.sprite_size + 4,
        "hidden": (256, 256),
    }
    config.model.decoder = {"network": "dense", "hidden": (decoder_width,) * 2}
    config.auxiliary.space_to_depth = 6
    config.budget.update(slots=4, objects_per_image=2.5)


def _joint_steps(config: ConfigDict, num_steps: int, *, warmup: int, anneal: int) -> None:
    """Sets the steps of the phases; the location network's learning rate falls until the end."""
    config.curriculum.warmup.update(steps=warmup + anneal, anneal_steps=anneal)
    config.curriculum.elbo.steps = num_steps - warmup - anneal
    config.curriculum.location.decay_steps = num_steps


def _baseline_steps(config: ConfigDict, *, crops: int, elbo: int, beta: int) -> None:
    """Sets the steps of the phases, and the number of steps after which β reaches its end."""
    for part, steps in (("crops", crops), ("elbo", elbo), ("beta", beta)):
        config.curriculum[part].steps = steps


def _near(sprite_size: int) -> int:
    """A distance in pixels; objects closer than this may be counted as one."""
    return 1 + sprite_size // 12


def _third(sprite_size: int) -> int:
    """A third of a sprite, in pixels, rounded."""
    return (sprite_size + 1) // 3


def _half_a_sprite(config: ConfigDict) -> int:
    """A distance in pixels; the centres of two objects are farther apart than this."""
    return config.model.sprite_size // 2


def _few_steps(config: ConfigDict) -> None:
    config.dataset.overrides = "num_train=1200,num_test=60,num_crowd=40"
    config.dataset.held_out = 80
    config.batch_size = 16
    config.log_every_steps = 10
    config.eval_every_steps = 30
    config.checkpoint_every_steps = 20
