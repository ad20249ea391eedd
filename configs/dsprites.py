"""LAVAE on multi-dSprites.

    python launch/train.py --config=configs/dsprites.py        # the paper's own setting
    python launch/train.py --config=configs/dsprites.py:cpu    # 33 minutes on a core
    python launch/train.py --config=configs/dsprites.py:mixture    # and a learnt p(z_app)
    python launch/train.py --config=configs/dsprites.py:tiny   # under 3 minutes, for tests

The third column of Table 1; the paper has -log p(x) <= 43.9 ± 1.0 and a count accuracy of at
least 99.9 %. README says what `cpu` gives, and in what time. `paper` is for accelerators.
"""

from configs import common


def get_config(recipe: str = "paper"):
    config = common.lavae(
        "dsprites",
        dataset="multi_dsprites",
        channels=3,
        sprite_size=21,
        location_learning_rate=5e-4,
    )
    recipes = common.lavae_recipes({"components": 6_000}, appearance_steps=40_000)
    return common.make(config, recipe, **recipes)
