"""The baseline, a fully convolutional β-VAE, on multi-dSprites.

    python launch/train.py --config=configs/baseline_dsprites.py        # the default: cpu
    python launch/train.py --config=configs/baseline_dsprites.py:paper  # Appendix B
    python launch/train.py --config=configs/baseline_dsprites.py:plain  # its layers made small
    python launch/train.py --config=configs/baseline_dsprites.py:tiny   # for tests

The third column of Table 1's second row; the paper has -log p(x) <= 45.8 ± 0.7. README says
what `cpu` gives, and how its networks differ from the paper's.
"""

from configs import common


def get_config(recipe: str = common.BY_DEVICE):
    config = common.baseline("baseline_dsprites", dataset="multi_dsprites", channels=3)
    recipes = common.baseline_recipes(kernel=21, num_steps=100_000)
    return common.make(config, recipe, **recipes)
