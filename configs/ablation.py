"""What each departure from the paper's training buys, on multi-MNIST-1k in fewer steps.

    python launch/train.py --config=configs/ablation.py:described
    python launch/train.py --config=configs/ablation.py:phases
    python launch/train.py --config=configs/ablation.py:centred
    python launch/train.py --config=configs/ablation.py:frozen
    python launch/train.py --config=configs/ablation.py:peaks

Each is one change away from the one before. `described`: the paper's training, in small.
`phases`: the auxiliary VAE is trained first, h_loc then on the peaks of its KL map, then
everything by the ELBO. `centred`: peaks move to centres of mass. `frozen`: the ELBO does not
train h_loc. `peaks`: q(z_loc) samples on peaks alone, which is the recipe `cpu`. The recipe
`joint` of configs/mnist1k.py is this file's `described` with three changes.
"""

from lavae_jax.recipes import common, mnist1k

STEPS = 8_000  # of the ELBO


def described(config):
    common.lavae_stem(config, num_steps=4_000 + STEPS)


def peaks(config):
    common.lavae_cpu(config, appearance_steps=STEPS)


def frozen(config):
    peaks(config)
    config.model.support = "pixels"


def centred(config):
    frozen(config)
    paper = mnist1k.get_config("described")
    common.lavae_stem(paper, num_steps=STEPS)
    config.curriculum.location = paper.curriculum.location
    config.curriculum.temperature = paper.curriculum.temperature


def phases(config):
    centred(config)
    config.curriculum.peaks.centrings = 0


def get_config(recipe: str = "described"):
    config = mnist1k.get_config("described")
    config.name = "ablation"
    recipes = (described, phases, centred, frozen, peaks)
    return common.make(config, recipe, **{recipe.__name__: recipe for recipe in recipes})
