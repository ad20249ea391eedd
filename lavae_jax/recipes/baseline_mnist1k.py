"""The baseline on multi-MNIST-1k. See configs/baseline_mnist1k.py."""

from lavae_jax.recipes import common


def get_config(recipe: str = common.BY_DEVICE):
    """Makes the config.

    Args:
        recipe: a name from `common.baseline_recipes`; by default the one for this machine's
            devices.

    Returns:
        The config.
    """
    config = common.baseline("baseline_mnist1k", dataset="multi_mnist/1k", channels=1)
    recipes = common.baseline_recipes(kernel=17, num_steps=60_000)
    return common.make(config, recipe, **recipes)
