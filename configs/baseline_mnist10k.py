"""The baseline, a fully convolutional β-VAE, on multi-MNIST-10k.

    python launch/train.py --config=configs/baseline_mnist10k.py        # the default: cpu
    python launch/train.py --config=configs/baseline_mnist10k.py:paper  # Appendix B
    python launch/train.py --config=configs/baseline_mnist10k.py:plain  # its layers, all at 8x8
    python launch/train.py --config=configs/baseline_mnist10k.py:tiny   # for tests

Table 1, second row, second column: the paper has -log p(x) <= 64.6 ± 0.8. README has the result of
`cpu`; docs/design-decisions.md says how its networks differ from the paper's.
"""

from lavae_jax.recipes.baseline_mnist10k import get_config as get_config
