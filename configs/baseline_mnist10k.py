"""The baseline, a fully convolutional β-VAE, on multi-MNIST-10k.

    python launch/train.py --config=configs/baseline_mnist10k.py        # the default: cpu
    python launch/train.py --config=configs/baseline_mnist10k.py:paper  # Appendix B
    python launch/train.py --config=configs/baseline_mnist10k.py:plain  # its layers made small
    python launch/train.py --config=configs/baseline_mnist10k.py:tiny   # for tests

The second column of Table 1's second row; the paper has -log p(x) <= 64.6 ± 0.8. README says
what `cpu` gives, and how its networks differ from the paper's.
"""

from configs import common


def get_config(recipe: str = common.BY_DEVICE):
    config = common.baseline("baseline_mnist10k", dataset="multi_mnist/10k", channels=1)
    recipes = common.baseline_recipes(kernel=17, num_steps=50_000)
    return common.make(config, recipe, **recipes)
