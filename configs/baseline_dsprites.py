"""The baseline, a fully convolutional β-VAE, on multi-dSprites.

    python launch/train.py --config=configs/baseline_dsprites.py        # the paper's own setting
    python launch/train.py --config=configs/baseline_dsprites.py:cpu    # for 2 cores
    python launch/train.py --config=configs/baseline_dsprites.py:tiny   # for tests

Reproduces the second row of Table 1 (-log p(x) <= 45.8 ± 0.7). The time and the result of
`cpu` are to be measured.
"""

from configs import common


def get_config(recipe: str = "paper"):
    return common.baseline("baseline_dsprites", recipe, dataset="multi_dsprites", channels=3)
