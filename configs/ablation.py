"""Ablation: what each departure from the paper's training contributes, on multi-MNIST-1k.

    python launch/train.py --config=configs/ablation.py:described
    python launch/train.py --config=configs/ablation.py:frozen
    python launch/train.py --config=configs/ablation.py:peaks

These have fewer steps than the recipes. `described`: the paper's training, with small networks.
`frozen`: the auxiliary VAE is trained first, then the location network on the peaks of the VAE's KL
map, then everything else by the ELBO. `peaks`: like `frozen`, but q(z_loc) samples only peaks, as
in the recipe `cpu`. The recipe `joint` of configs/mnist1k.py is `described` with three changes.

The same kind of ablation at full resolution, for the recipe `thin` with fewer steps:

    python launch/train.py --config=configs/ablation.py:thin_described
    python launch/train.py --config=configs/ablation.py:thin_exclusion
    python launch/train.py --config=configs/ablation.py:thin_gamma
    python launch/train.py --config=configs/ablation.py:thin_peaks

`thin_described`: γ, the threshold, local maxima and draws as in Appendix B. `thin_exclusion`: a
draw excludes all pixels within half a sprite of it from later draws. `thin_gamma`: also γ = 32 and
a threshold of 2 γ. `thin_peaks`: also, local maxima are those of the pixels within a third of a
sprite; all changes together are the recipe `thin`.
"""

from lavae_jax.recipes import common, mnist1k

STEPS = 8_000  # of the ELBO
THIN_STEPS = 6_000


def described(config):
    """For two CPU cores: the paper's training, with small networks and fewer steps.

    Args:
        config: changed in place.
    """
    common.lavae_stem(config, num_steps=4_000 + STEPS)


def peaks(config):
    """For two CPU cores: the recipe `cpu` with fewer steps.

    Args:
        config: changed in place.
    """
    common.lavae_cpu(config, appearance_steps=STEPS)


def frozen(config):
    """For two CPU cores: `peaks`, but q(z_loc) samples on all pixels.

    Args:
        config: changed in place.
    """
    peaks(config)
    config.model.support = "pixels"


def thin_peaks(config):
    """For two CPU cores: the recipe `thin` with fewer steps.

    Args:
        config: changed in place.
    """
    common.lavae_thin(config, num_steps=THIN_STEPS)


def thin_gamma(config):
    """For two CPU cores: `thin_peaks` with the local maxima of Appendix B.

    Args:
        config: changed in place.
    """
    peak_radius = config.model.peak_radius
    thin_peaks(config)
    config.model.peak_radius = peak_radius


def thin_exclusion(config):
    """For two CPU cores: `thin_gamma` with γ and the threshold of Appendix B.

    Args:
        config: changed in place.
    """
    gamma, threshold = config.model.gamma, config.model.threshold
    thin_gamma(config)
    config.model.update(gamma=gamma, threshold=threshold)


def thin_described(config):
    """For two CPU cores: `thin_exclusion` with the draws of Appendix B, which exclude no pixels.

    Args:
        config: changed in place.
    """
    thin_exclusion(config)
    config.model.exclusion_radius = 0


def get_config(recipe: str = "described"):
    """Makes the config of one arm of the ablation.

    Args:
        recipe: the name of a function above.

    Returns:
        The config.
    """
    config = mnist1k.get_config("described")
    config.name = "ablation"
    recipes = (described, frozen, peaks)
    recipes += (thin_described, thin_exclusion, thin_gamma, thin_peaks)
    return common.make(config, recipe, **{recipe.__name__: recipe for recipe in recipes})
