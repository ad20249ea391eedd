"""LAVAE on multi-MNIST-10k. See configs/mnist10k.py."""

from lavae_jax.recipes import common


def get_config(recipe: str = common.BY_DEVICE):
    """Makes the config.

    Args:
        recipe: a name from `common.lavae_recipes`; by default the one for this machine's devices.

    Returns:
        The config.
    """
    config = common.lavae(
        "mnist10k",
        dataset="multi_mnist/10k",
        channels=1,
        sprite_size=17,
        location_learning_rate=1e-4,
    )
    mixture = {"components": 10_000, "steps": 30_000, "learning_rate": 5e-3}
    recipes = common.lavae_recipes(mixture, decoder_width=512, appearance_steps=92_000)
    return common.make(config, recipe, **recipes)
