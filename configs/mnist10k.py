"""LAVAE on multi-MNIST-10k.

    python launch/train.py --config=configs/mnist10k.py            # the default: cpu
    python launch/train.py --config=configs/mnist10k.py:mixture    # cpu, and a learned p(z_app)
    python launch/train.py --config=configs/mnist10k.py:paper      # for accelerators

The other recipes are those of configs/mnist1k.py.

The second column of Table 1; the paper has -log p(x) <= 60.4 ± 2.8 and a count accuracy of at
least 99.7 %. README says what `cpu` gives.

The digits come from MNIST's training files: --config.dataset.mnist_dir=FOLDER says where
they are; README names other sources.
"""

from configs import common


def get_config(recipe: str = common.BY_DEVICE):
    config = common.lavae(
        "mnist10k",
        dataset="multi_mnist/10k",
        channels=1,
        sprite_size=17,
        location_learning_rate=1e-4,
    )
    mixture = {"components": 10_000, "steps": 30_000, "learning_rate": 5e-3}
    recipes = common.lavae_recipes(mixture, decoder_width=512, appearance_steps=92_000)
    return common.make(config, recipe, **recipes)
