"""LAVAE on multi-dSprites.

    python launch/train.py --config=configs/dsprites.py            # the default: cpu
    python launch/train.py --config=configs/dsprites.py:mixture    # as cpu, with a learned p(z_app)
    python launch/train.py --config=configs/dsprites.py:sleep      # objects may touch or overlap
    python launch/train.py --config=configs/dsprites.py:paper      # for accelerators

The other recipes are those of configs/mnist1k.py.

Table 1, third column: the paper has -log p(x) <= 43.9 ± 1.0 and a count accuracy of at least
99.9%. README has the results of `cpu` and `sleep`.
"""

from lavae_jax.recipes.dsprites import get_config as get_config
