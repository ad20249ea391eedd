"""The baseline, a fully convolutional β-VAE, on multi-MNIST-1k.

    python launch/train.py --config=configs/baseline_mnist1k.py        # the default: cpu
    python launch/train.py --config=configs/baseline_mnist1k.py:paper  # Appendix B
    python launch/train.py --config=configs/baseline_mnist1k.py:plain  # its layers, all at 8x8
    python launch/train.py --config=configs/baseline_mnist1k.py:tiny   # for tests

Table 1, second row, first column: the paper has -log p(x) <= 51.6 ± 0.6. README has the result of
`cpu`; docs/design-decisions.md says how its networks differ from the paper's.
"""

from lavae_jax.recipes.baseline_mnist1k import get_config as get_config
