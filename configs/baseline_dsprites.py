"""The baseline, a fully convolutional β-VAE, on multi-dSprites.

    python launch/train.py --config=configs/baseline_dsprites.py        # the default: cpu
    python launch/train.py --config=configs/baseline_dsprites.py:paper  # Appendix B
    python launch/train.py --config=configs/baseline_dsprites.py:plain  # its layers, all at 8x8
    python launch/train.py --config=configs/baseline_dsprites.py:tiny   # for tests

Table 1, second row, third column: the paper has -log p(x) <= 45.8 ± 0.7. README has the result of
`cpu`; docs/design-decisions.md says how its networks differ from the paper's.
"""

from lavae_jax.recipes.baseline_dsprites import get_config as get_config
