"""LAVAE on multi-MNIST-1k.

    python launch/train.py --config=configs/mnist1k.py            # the default: cpu
    python launch/train.py --config=configs/mnist1k.py:mixture    # as cpu, with a learned p(z_app)
    python launch/train.py --config=configs/mnist1k.py:sleep      # objects may touch or overlap
    python launch/train.py --config=configs/mnist1k.py:joint      # the paper's training, smaller
    python launch/train.py --config=configs/mnist1k.py:thin       # like paper, for two CPU cores
    python launch/train.py --config=configs/mnist1k.py:paper      # for accelerators
    python launch/train.py --config=configs/mnist1k.py:described  # Appendix B to the letter
    python launch/train.py --config=configs/mnist1k.py:tiny       # 60 steps, for tests

Table 1, first column: the paper has -log p(x) <= 42.2 ± 1.1 and a count accuracy of at least
99.9%. README has the results of `cpu` and `sleep`.
"""

from lavae_jax.recipes.mnist1k import get_config as get_config
