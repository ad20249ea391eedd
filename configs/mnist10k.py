"""LAVAE on multi-MNIST-10k.

    python launch/train.py --config=configs/mnist10k.py            # the default: cpu
    python launch/train.py --config=configs/mnist10k.py:mixture    # as cpu, with a learned p(z_app)
    python launch/train.py --config=configs/mnist10k.py:sleep      # objects may touch or overlap
    python launch/train.py --config=configs/mnist10k.py:paper      # for accelerators

The other recipes are those of configs/mnist1k.py.

Table 1, second column: the paper has -log p(x) <= 60.4 ± 2.8 and a count accuracy of at least
99.7%. README has the results of `cpu` and `sleep`.

The digits come from MNIST's training files in the folder --config.dataset.mnist_dir=FOLDER.
datasets/multi_mnist/README.md names other sources.
"""

from lavae_jax.recipes.mnist10k import get_config as get_config
