"""The baseline, a fully convolutional β-VAE, on multi-MNIST-10k.

    python launch/train.py --config=configs/baseline_mnist10k.py        # the default: cpu
    python launch/train.py --config=configs/baseline_mnist10k.py:paper  # Appendix B
    python launch/train.py --config=configs/baseline_mnist10k.py:plain  # its layers made small
    python launch/train.py --config=configs/baseline_mnist10k.py:tiny   # for tests

The second column of Table 1's second row; the paper has -log p(x) <= 64.6 ± 0.8. README says
what `cpu` gives, and how its networks differ from the paper's.
"""

from lavae_jax.recipes.baseline_mnist10k import get_config as get_config
