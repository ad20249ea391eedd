"""LAVAE on multi-MNIST-1k.

    python launch/train.py --config=configs/mnist1k.py            # the default: cpu
    python launch/train.py --config=configs/mnist1k.py:mixture    # cpu, and a learned p(z_app)
    python launch/train.py --config=configs/mnist1k.py:joint      # the paper's training
    python launch/train.py --config=configs/mnist1k.py:thin       # paper, for two CPU cores
    python launch/train.py --config=configs/mnist1k.py:paper      # for accelerators
    python launch/train.py --config=configs/mnist1k.py:described  # Appendix B to the letter
    python launch/train.py --config=configs/mnist1k.py:tiny       # 60 steps, for tests

The first column of Table 1; the paper has -log p(x) <= 42.2 ± 1.1 and a count accuracy of at
least 99.9 %. README says what `cpu` gives.
"""

from configs import common


def get_config(recipe: str = common.BY_DEVICE):
    config = common.lavae(
        "mnist1k",
        dataset="multi_mnist/1k",
        channels=1,
        sprite_size=17,
        location_learning_rate=1e-4,
    )
    recipes = common.lavae_recipes({"components": 3_000})
    return common.make(config, recipe, **recipes)
