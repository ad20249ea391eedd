"""LAVAE on multi-dSprites.

    python launch/train.py --config=configs/dsprites.py            # the default: cpu
    python launch/train.py --config=configs/dsprites.py:mixture    # cpu, and a learned p(z_app)
    python launch/train.py --config=configs/dsprites.py:paper      # for accelerators

The other recipes are those of configs/mnist1k.py.

The third column of Table 1; the paper has -log p(x) <= 43.9 ± 1.0 and a count accuracy of at
least 99.9 %. README says what `cpu` gives.
"""

from configs import common


def get_config(recipe: str = common.BY_DEVICE):
    config = common.lavae(
        "dsprites",
        dataset="multi_dsprites",
        channels=3,
        sprite_size=21,
        location_learning_rate=5e-4,
    )
    recipes = common.lavae_recipes({"components": 6_000}, appearance_steps=40_000)
    return common.make(config, recipe, **recipes)
