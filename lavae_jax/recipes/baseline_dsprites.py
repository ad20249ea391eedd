"""The baseline on multi-dSprites. See configs/baseline_dsprites.py."""

from lavae_jax.recipes import common


def get_config(recipe: str = common.BY_DEVICE):
    """Makes the config.

    Args:
        recipe: a name from `common.baseline_recipes`; by default the one for this machine's
            devices.

    Returns:
        The config.
    """
    config = common.baseline("baseline_dsprites", dataset="multi_dsprites", channels=3)
    recipes = common.baseline_recipes(kernel=21, num_steps=100_000)
    return common.make(config, recipe, **recipes)
