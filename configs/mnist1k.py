"""LAVAE on multi-MNIST-1k.

    python launch/train.py --config=configs/mnist1k.py        # the paper's own setting
    python launch/train.py --config=configs/mnist1k.py:cpu    # 23 minutes on a core
    python launch/train.py --config=configs/mnist1k.py:mixture    # and a learnt p(z_app)
    python launch/train.py --config=configs/mnist1k.py:tiny   # under 3 minutes, for tests

The first column of Table 1; the paper has -log p(x) <= 42.2 ± 1.1 and a count accuracy of at
least 99.9 %. README says what `cpu` gives, and in what time. `paper` is for accelerators: 47 s a
step, 54 days, on 2 CPU cores.
"""

from configs import common


def get_config(recipe: str = "paper"):
    config = common.lavae(
        "mnist1k",
        dataset="multi_mnist/1k",
        channels=1,
        sprite_size=17,
        location_learning_rate=1e-4,
    )
    recipes = common.lavae_recipes({"components": 3_000})
    return common.make(config, recipe, **recipes)
