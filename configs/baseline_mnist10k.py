"""The baseline, a fully convolutional β-VAE, on multi-MNIST-10k.

    python launch/train.py --config=configs/baseline_mnist10k.py        # the paper's own setting
    python launch/train.py --config=configs/baseline_mnist10k.py:cpu    # for 2 cores
    python launch/train.py --config=configs/baseline_mnist10k.py:tiny   # for tests

Reproduces the second row of Table 1 (-log p(x) <= 64.6 ± 0.8). The time and the result of
`cpu` are to be measured.
"""

from configs import common


def get_config(recipe: str = "paper"):
    return common.baseline("baseline_mnist10k", recipe, dataset="multi_mnist/10k")
