"""What each departure from the paper's training buys: the recipes between `joint` and `cpu`.

    python launch/train.py --config=configs/mnist1k.py:joint
    python launch/train.py --config=configs/ablation.py:phases
    python launch/train.py --config=configs/ablation.py:centred
    python launch/train.py --config=configs/ablation.py:frozen
    python launch/train.py --config=configs/mnist1k.py:cpu

Each is one change away from the one before. `phases`: the auxiliary VAE is trained first, h_loc
then on the peaks of its KL map, then everything by the ELBO. `centred`: peaks move to centres
of mass. `frozen`: the ELBO does not train h_loc. `cpu`: q(z_loc) samples on peaks alone.
"""

from configs import common, mnist1k


def frozen(config):
    common.lavae_cpu(config)
    config.model.support = "pixels"


def centred(config):
    frozen(config)
    joint = mnist1k.get_config("joint").curriculum
    steps = config.optimizer.decay_steps
    config.curriculum.location = {**joint.location, "decay_steps": steps}
    config.curriculum.temperature = joint.temperature


def phases(config):
    centred(config)
    config.curriculum.peaks.centrings = 0


def get_config(recipe: str = "phases"):
    config = mnist1k.get_config("paper")
    config.name = "ablation"
    return common.make(config, recipe, phases=phases, centred=centred, frozen=frozen)
