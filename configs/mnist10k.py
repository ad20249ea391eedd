"""LAVAE on multi-MNIST-10k.

    python launch/train.py --config=configs/mnist10k.py        # the paper's own setting
    python launch/train.py --config=configs/mnist10k.py:cpu    # 40 minutes on 2 cores
    python launch/train.py --config=configs/mnist10k.py:tiny   # under 3 minutes, for tests

Reproduces the second column of Table 1 (-log p(x) <= 60.4 ± 2.8, count accuracy at
least 99.7 %). `paper` is for accelerators: 47 s a step, 54 days, on 2 CPU cores. README
says what `cpu` gives, and in what time. The digits come from a folder
with MNIST's training files: add --config.dataset.mnist_dir=FOLDER.
"""

from configs import common


def get_config(recipe: str = "paper"):
    return common.lavae(
        "mnist10k",
        recipe,
        dataset="multi_mnist/10k",
        location_learning_rate=1e-4,
        decoder_width=512,
        appearance_steps=46_400,
    )
