"""LAVAE on custom images. See configs/images.py."""

import functools

from lavae_jax.recipes import common


def get_config(recipe: str = "cpu"):
    """Makes the config.

    Args:
        recipe: a name from `common.lavae_recipes`, or grey.

    Returns:
        The config. Changing `sprite_size` or `max_objects` in it also changes what depends on them.
    """
    config = common.lavae(
        "images", dataset="images", channels=1, sprite_size=17, location_learning_rate=1e-4
    )
    config.dataset = {
        "name": "images",
        "path": "",  # a folder, an .npy or .npz file, or tfds:name/config
        "member": "",  # the array of an .npz, or the split of a TFDS data set
        "data_dir": "",  # where TFDS finds it
        "images": "",  # their number and a fingerprint, which are filled in when a run starts
        "canvas": 64,  # side of the crops that are cut out of larger images at each step, in pixels
        "invert": False,  # objects are dark on a bright background
        "threshold": "otsu",  # or a number from 0 to 1, or stochastic
        "unreadable": "refuse",  # or skip: files that cannot be read
        "held_out": 0.1,  # a share of the images if below 1, otherwise their number
    }
    recipes = common.lavae_recipes({"components": 1_000}, appearance_steps=12_000)
    recipes["sleep"] = functools.partial(recipes["sleep"], steps=3_000, steps_again=6_000)
    recipes["grey"] = common.lavae_grey
    config = common.make(config, recipe, **recipes)
    common.follow_sprite_size(config)
    return config
