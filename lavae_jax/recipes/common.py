"""What the configs share: the paper's settings, and the recipes made from them.

`lavae` and `baseline` are Appendix B to the letter, with the source of each number; where they
name no source, the paper is silent and WORKSPACE.md has the reason. Recipes change them.
"""

import functools
from collections.abc import Callable, Collection

import jax
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

Recipe = Callable[[ConfigDict], None]  # changes the config of Appendix B

BY_DEVICE = ""  # the recipe of a command that names none
# The same on every device. `thin`, which is `paper` made small, counts every object but has not
# reached the likelihood of `sleep` (docs/experiments.md, "At full resolution").
CPU_RECIPE = ACCELERATOR_RECIPE = "sleep"
WITHOUT_SLEEP = "cpu"  # the default of a config that has no such recipe, as baselines


def default_recipe(recipes: Collection[str]) -> str:
    """Of a config's recipes, the one that suits the devices of this machine."""
    default = CPU_RECIPE if jax.devices()[0].platform == "cpu" else ACCELERATOR_RECIPE
    return default if default in recipes else WITHOUT_SLEEP


def make(config: ConfigDict, recipe: str, **recipes: Recipe) -> ConfigDict:
    """Appendix B, changed by one of the recipes."""
    recipe = recipe or default_recipe(recipes)
    if recipe not in recipes:
        raise ValueError(f"there is no recipe {recipe!r}; expected one of {', '.join(recipes)}")
    config.recipe = recipe
    recipes[recipe](config)
    return config


def as_described(config: ConfigDict) -> None:
    """Appendix B, unchanged."""


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
            "num_train_steps": placeholder(int),  # ends the run before the end of its last phase
            # Every so many steps and at the end; 0 for never.
            "log_every_steps": 100,
            "eval_every_steps": 2_000,
            "checkpoint_every_steps": 1_000,
            "keep_checkpoints": 3,
        }
    )


def lavae(
    name: str, *, dataset: str, channels: int, sprite_size: int, location_learning_rate: float
) -> ConfigDict:
    """LAVAE (App. B)."""
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
        "schedule": "constant",  # or cosine: half of one, to 0 at the end of the run
    }
    config.curriculum = {
        "phases": ("warmup", "elbo"),  # of 100k steps in all
        "warmup": {
            "steps": 60_000,  # App. B: 30k, and 30k of annealing
            "anneal_steps": 30_000,
            "auxiliary_weight": 1.0,
            "force_one_end": 0.1,  # App. B: the probability of n = 1 after all that
        },
        "elbo": {"steps": 40_000},
        "temperature": {"start": 0.5, "end": 0.02, "steps": 100_000},  # App. B: τ
        "location": {
            "learning_rate": location_learning_rate,  # App. B: 1e-4, 5e-4 for multi-dSprites
            "decay_rate": 0.01,  # App. B: by a factor of 100 ...
            "decay_steps": 100_000,  # ... in 100k steps
        },
    }
    # Objects that a training step has room for: slots in an image, and so many for each image
    # of a device's batch on average. Scenes have 1.5; objects beyond the budget are left out of the
    # step and reported as `overflow`.
    config.budget = {"slots": 10, "objects_per_image": 3.0}
    return config


def baseline(name: str, *, dataset: str, channels: int) -> ConfigDict:
    """The fully convolutional β-VAE (App. B)."""
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


def lavae_recipes(mixture: dict[str, float], **cpu: int) -> dict[str, Recipe]:
    """By name, with settings of the recipe `mixture` and of `cpu`, which it begins with."""
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

    WORKSPACE.md has the reason for each in its table of choices.
    """
    config.model.update(gamma=32.0, threshold=2.0, peak_radius=config.model.sprite_size // 3)
    config.model.exclusion_radius = _half_a_sprite(config)
    # How it is computed, for the sake of memory traffic (docs/platforms.md).
    config.model.update(activations="bfloat16", packed_pixels=2)
    config.eval_every_steps = 1_000  # the first one tells whether a run is healthy


def lavae_thin(config: ConfigDict, *, num_steps: int = 32_000) -> None:
    """The recipe `paper` for two CPU cores: smaller networks and batches, fewer steps.

    The appearance network runs on windows, which gives the same numbers as on the map at hard
    locations in half of the time. The warm-up and the annealing take a tenth of the steps each,
    where the paper's take three tenths. Learning rates are higher, and fall to 0 along half a
    cosine.
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
    """For 2 cores: small networks; where objects are, then what they look like.

    The learning rates of `peaks`, `appearance` and `mixture` fall to 0 along half a cosine.
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
            "localisation_weight": 4.0,  # of telling it from the 8 around it
        },
        "appearance": {"steps": appearance_steps, "learning_rate": 1e-2},
    }


def lavae_sleep(
    config: ConfigDict, *, steps: int = 4_500, steps_again: int = 0, **cpu: int
) -> None:
    """The recipe `cpu` for objects that touch: the networks of q learn composed scenes, too.

    Objects of the training images may overlap if there is a phase `sleep_again` of some steps.
    """
    lavae_cpu(config, **cpu)
    config.model.location.update(width=32, blocks=4, head_width=32)
    config.model.peak_radius = _near(config.model.sprite_size)
    config.model.min_object_probability = 0.5
    config.model.composition = "over"
    config.curriculum.phases = ("auxiliary", "sleep", "appearance", "overlap")
    # `threshold`, `shifts` and `centrings` find the objects that scenes are composed of, half of
    # which are rotated and mirrored.
    config.curriculum.sleep = {
        **config.curriculum.peaks,
        "steps": steps,
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
    """For 2 cores and grey images, whose objects may touch: networks that learn pasted scenes.

    Images are zoomed until the usual object has a diameter of 12 pixels (see `normalisation`), so
    that no size depends on them.
    """
    config.model.sprite_size = 31
    _small_networks(config, decoder_width=256)
    config.batch_size = 16
    config.dataset.update(levels="grey", diameter="auto")  # or that of the usual object, in pixels
    config.model.update(max_objects=24, latent_size=24, support="peaks", likelihood="gaussian")
    config.model.update(peak_radius=2, min_object_probability=0.5, pixel_deviation=0.1)
    del config.optimizer, config.curriculum
    config.curriculum = {
        "phases": ("pasted", "portraits"),
        "pasted": {
            "steps": 3_000,
            "learning_rate": 6e-3,
            "positive_weight": 20.0,  # of a pixel that is marked
            "localisation_weight": 4.0,  # of telling it from the 8 around it
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
    """The cpu recipe, and then a prior of appearances that is learnt."""
    lavae_cpu(config, **cpu)
    config.model.prior = {"kind": "mixture", "components": components}
    config.curriculum.phases += ("mixture",)
    config.curriculum.mixture = {"steps": steps, "learning_rate": learning_rate}
    config.start_from = ""  # a model of the recipe cpu, instead of the phases before


def lavae_stem(config: ConfigDict, *, num_steps: int = 20_000) -> None:
    """For 2 cores, as described: only sizes, rates and lengths differ from the paper's."""
    _small_networks(config, decoder_width=256)
    config.batch_size = 32
    config.model.peak_radius = _half_a_sprite(config)
    config.optimizer = {"learning_rate": 1e-2, "schedule": "cosine"}
    _joint_steps(config, num_steps, warmup=2_000, anneal=2_000)
    config.curriculum.temperature.steps = 8_000
    config.curriculum.location.learning_rate = 1e-3


def lavae_joint(config: ConfigDict) -> None:
    """For 2 cores, the paper's way: everything at once. With what a stem of 4 makes necessary:
    logits that prefer no place in its cells, a γ that makes them sharp all the same, and draws
    that keep apart, since smooth logits have an object's pixels in second place, too."""
    lavae_stem(config)
    config.model.location.blur_logits = True
    config.model.update(gamma=32.0, threshold=2.0, peak_radius=3)
    config.model.exclusion_radius = _half_a_sprite(config)
    config.curriculum.location.learning_rate = 4e-3


def lavae_tiny(config: ConfigDict) -> None:
    """For tests: the paper's way in 60 steps."""
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
    """By name, with settings of the recipe `cpu`."""
    return {
        "paper": as_described,
        "cpu": functools.partial(baseline_cpu, **cpu),
        "plain": baseline_plain,
        "tiny": functools.partial(baseline_tiny, **cpu),
    }


def baseline_cpu(config: ConfigDict, *, kernel: int, num_steps: int) -> None:
    """For 2 cores: networks that need not learn an object at each place of a cell."""
    # kernel: the side of what a latent sees and draws, that of LAVAE's sprites
    config.model.update(architecture="glimpse", width=256, kernel=kernel)
    del config.model.space_to_depth
    config.batch_size = 16
    config.eval_every_steps = 5_000
    config.optimizer.update(learning_rate=1e-2, schedule="cosine")
    crops = num_steps * 24 // 25
    _baseline_steps(config, crops=crops, elbo=num_steps - crops, beta=5_000)


def baseline_plain(config: ConfigDict) -> None:
    """For 2 cores: the paper's layers, all at the resolution of the latents."""
    config.model.update(space_to_depth=8)
    config.batch_size = 16
    config.optimizer.update(learning_rate=1e-2, schedule="cosine")
    _baseline_steps(config, crops=0, elbo=40_000, beta=5_000)


def baseline_tiny(config: ConfigDict, **cpu: int) -> None:
    """For tests."""
    baseline_cpu(config, **cpu)
    _few_steps(config)
    config.model.width = 8
    _baseline_steps(config, crops=30, elbo=30, beta=40)


def follow_sprite_size(config: ConfigDict) -> None:
    """What depends on the size of objects, by one rule; it follows when that is changed."""
    sprite, objects = config.model.get_ref("sprite_size"), config.model.get_ref("max_objects")
    # The recipe's rule for its radius, if it has one.
    for rule in (_near, lambda size: size // 3, lambda size: size // 2):
        if config.model.peak_radius == rule(config.model.sprite_size):
            config.model.peak_radius = rule(sprite)
            break
    if "exclusion_radius" in config.model:
        config.model.exclusion_radius = sprite // 2
    if "window" in config.model.appearance:
        config.model.appearance.window = sprite // 2 * 2 + 5  # odd
    if config.auxiliary.space_to_depth > 1:
        config.auxiliary.cell = config.auxiliary.space_to_depth = (sprite + 1) // 3
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
    """How many steps a run has; the learning rate of the location network falls during all."""
    config.curriculum.warmup.update(steps=warmup + anneal, anneal_steps=anneal)
    config.curriculum.elbo.steps = num_steps - warmup - anneal
    config.curriculum.location.decay_steps = num_steps


def _baseline_steps(config: ConfigDict, *, crops: int, elbo: int, beta: int) -> None:
    """How many steps the phases have, and after how many β reaches its end."""
    for part, steps in (("crops", crops), ("elbo", elbo), ("beta", beta)):
        config.curriculum[part].steps = steps


def _near(sprite_size: int) -> int:
    """In pixels; objects whose locations are nearer than that may be taken for one."""
    return 1 + sprite_size // 12


def _half_a_sprite(config: ConfigDict) -> int:
    """In pixels; two objects' centres are farther apart."""
    return config.model.sprite_size // 2


def _few_steps(config: ConfigDict) -> None:
    config.dataset.overrides = "num_train=1200,num_test=60,num_crowd=40"
    config.dataset.held_out = 80
    config.batch_size = 16
    config.log_every_steps = 10
    config.eval_every_steps = 30
    config.checkpoint_every_steps = 20
