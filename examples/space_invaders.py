"""Finds invaders in frames of the game without labels, and scores the detections.

    pip install ale-py
    python examples/space_invaders.py --make=frames/
    python launch/train.py --config=configs/images.py:cpu --config.dataset.path=frames/train \\
        --config.model.sprite_size=13 --config.model.max_objects=30 --workdir=runs/invaders
    python launch/infer.py --checkpoint=runs/invaders --images=frames/test \\
        --output=invaders.jsonl --groups=16
    python examples/space_invaders.py --score=invaders.jsonl --truth=frames/test/truth.json

A random player plays; frames show the invaders' field, shots included. Which invaders are left, and
where, is read from the game's memory. Test frames come from other games than training frames.
Frames with an explosion are left out of both, since it is ambiguous whether an exploding invader
counts.
"""

import json
import pathlib
import random

import _shared
import numpy as np
from absl import flags
from PIL import Image

FRAMES = flags.DEFINE_list("frames", ["3000", "500"], "Numbers of frames of `train` and `test`.")

TOP, BOTTOM = 28, 156  # rows of the screen between the score and the shields
EVERY = 7  # game frames for each image; odd, since some sprites flicker: drawn in every other frame
EXPLOSION = 25  # the largest number of frames that an explosion lasts
NARROWEST = 4  # pixels: the smallest width of an invader; shots are up to 2 wide
NEAR = 2.0  # pixels: the largest distance at which a detection matches a true centre
# Addresses in the game's memory: a bit mask for each of the six rows of invaders, the lowest first;
# the row and the column of the first invader.
MASKS, DOWN, RIGHT = slice(18, 24), 16, 26
PITCH = np.array([18, 16])


def play(folder: pathlib.Path) -> None:
    """Plays games, and writes frames and the true centres of their invaders.

    Args:
        folder: the folder to write to.
    """
    for part, (name, number) in enumerate(zip(("train", "test"), FRAMES.value, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        truth = {}
        for frame, centres in _frames(int(number), seed=part):
            file = f"{len(truth):05}.png"
            Image.fromarray(frame).save(folder / name / file)
            truth[file] = centres.tolist()
        (folder / name / "truth.json").write_text(json.dumps(truth) + "\n")
        counts = [len(centres) for centres in truth.values()]
        print(f"{folder / name}: {number} frames with {min(counts)} to {max(counts)} invaders")


def _frames(number: int, seed: int):
    """Frames [H, W] uint8, and the centres of the invaders in each."""
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    game = ALEInterface()
    game.setInt("random_seed", seed)
    game.loadROM(roms.get_rom_path("space_invaders"))
    player, actions = random.Random(seed), game.getMinimalActionSet()
    made, since_hit, masks = 0, 0, None
    for time in range(1_000_000):
        if game.game_over():
            game.reset_game()
        game.act(player.choice(actions))
        memory = game.getRAM()
        is_new, masks = masks != memory[MASKS].tolist(), memory[MASKS].tolist()
        since_hit = 0 if is_new else since_hit + 1
        if time % EVERY or since_hit < EXPLOSION:
            continue
        field = game.getScreenGrayscale()[TOP:BOTTOM]
        centres = _invaders(field, memory)
        if centres is None:
            continue
        yield field, centres
        made += 1
        if made == number:
            return


def _invaders(field: np.ndarray, memory: np.ndarray) -> np.ndarray | None:
    """[n, 2]: the centres of mass of the invaders whose bits are set.

    None unless all of them are visible; between two games they are not.
    """
    colour = 122
    first = np.array([31 - TOP + 2 * int(memory[DOWN]), int(memory[RIGHT]) - 1])
    centres = []
    for row, mask in enumerate(reversed(memory[MASKS].tolist())):
        for column in range(6):
            if not mask >> column & 1:
                continue
            top, left = first + PITCH * [row, column]
            cell = field[max(top - 1, 0) : top + 11, max(left - 2, 0) : left + 10] == colour
            if cell.sum() < 15:
                return None
            down, right = np.argwhere(cell).mean(0)
            centres.append([max(top - 1, 0) + down, max(left - 2, 0) + right])
    return np.array(centres).reshape(-1, 2)


if __name__ == "__main__":
    _shared.run(play, NEAR, lambda thing: thing["width"] >= NARROWEST)
