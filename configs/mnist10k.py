"""LAVAE on multi-MNIST-10k.

    python launch/train.py --config=configs/mnist10k.py            # the default: sleep
    python launch/train.py --config=configs/mnist10k.py:mixture    # as cpu, with a learned p(z_app)
    python launch/train.py --config=configs/mnist10k.py:paper      # for accelerators

The other recipes are those of configs/mnist1k.py.

The second column of Table 1; the paper has -log p(x) <= 60.4 ± 2.8 and a count accuracy of at
least 99.7 %. README says what `sleep` gives.

The digits come from MNIST's training files: --config.dataset.mnist_dir=FOLDER says where
they are; README names other sources.
"""

from lavae_jax.recipes.mnist10k import get_config as get_config
