"""LAVAE on multi-dSprites. See configs/dsprites.py."""

import functools

from lavae_jax.recipes import common


def get_config(recipe: str = common.BY_DEVICE):
    """Makes the config.

    Args:
        recipe: a name from `common.lavae_recipes`; by default the one for this machine's devices.

    Returns:
        The config.
    """
    config = common.lavae(
        "dsprites",
        dataset="multi_dsprites",
        channels=3,
        sprite_size=21,
        location_learning_rate=5e-4,
    )
    recipes = common.lavae_recipes({"components": 6_000}, appearance_steps=40_000)
    # Too little of a partly hidden object is visible for the likelihood to decide about its peak.
    recipes["sleep"] = functools.partial(recipes["sleep"], resolve=False)
    return common.make(config, recipe, **recipes)
