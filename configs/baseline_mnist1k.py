"""The baseline, a fully convolutional β-VAE, on multi-MNIST-1k.

    python launch/train.py --config=configs/baseline_mnist1k.py        # the default: cpu
    python launch/train.py --config=configs/baseline_mnist1k.py:paper  # Appendix B
    python launch/train.py --config=configs/baseline_mnist1k.py:plain  # its layers made small
    python launch/train.py --config=configs/baseline_mnist1k.py:tiny   # for tests

The first column of Table 1's second row; the paper has -log p(x) <= 51.6 ± 0.6. README says
what `cpu` gives, and how its networks differ from the paper's.
"""

from configs import common


def get_config(recipe: str = common.BY_DEVICE):
    config = common.baseline("baseline_mnist1k", dataset="multi_mnist/1k", channels=1)
    recipes = common.baseline_recipes(kernel=17, num_steps=60_000)
    return common.make(config, recipe, **recipes)
