"""The baseline on multi-MNIST-1k. See configs/baseline_mnist1k.py."""

from lavae_jax.recipes import common


def get_config(recipe: str = common.BY_DEVICE):
    config = common.baseline("baseline_mnist1k", dataset="multi_mnist/1k", channels=1)
    recipes = common.baseline_recipes(kernel=17, num_steps=60_000)
    return common.make(config, recipe, **recipes)
