"""LAVAE on multi-MNIST-1k. See configs/mnist1k.py."""

from lavae_jax.recipes import common


def get_config(recipe: str = common.BY_DEVICE):
    """Makes the config.

    Args:
        recipe: a name from `common.lavae_recipes`; by default the one for this machine's devices.

    Returns:
        The config.
    """
    config = common.lavae(
        "mnist1k",
        dataset="multi_mnist/1k",
        channels=1,
        sprite_size=17,
        location_learning_rate=1e-4,
    )
    recipes = common.lavae_recipes({"components": 3_000})
    return common.make(config, recipe, **recipes)
