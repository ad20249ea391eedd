"""Groups of objects that look alike: Ward's clustering of their appearances.

records = lavae_jax.analyse(model, images, appearances=True)
found = groups.find(records, 12)
records = groups.assign(records, found)    # each object has the number of its group
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from lavae_jax.objects import Record

# Memory and time grow with the square of the objects that are clustered. Of more, every second,
# third, ... is, and the others join the nearest group.
MOST_CLUSTERED = 5_000


class Group(NamedTuple):
    """Objects that look alike.

    Attributes:
        number: 1 for the largest group, and so on.
        members: indices of the image and of the object in it; what is nearest to the middle of the
            group comes first.
    """

    number: int
    members: list[tuple[int, int]]


def find(records: Sequence[Record], number: int) -> list[Group]:
    """Groups the objects of images by appearance.

    Args:
        records: of images, whose objects have an `appearance`; see `analysis.analyse`.
        number: of groups; where there are fewer different appearances, so many are returned.

    Returns:
        The groups, the largest first. The same records give the same groups.
    """
    where = [(i, k) for i, one in enumerate(records) for k in range(len(one["objects"]))]
    if not where:
        return []
    appearance = np.array([records[i]["objects"][k]["appearance"] for i, k in where])
    middles = _middles(appearance, number)
    group, distance = scipy.cluster.vq.vq(appearance, middles)
    members = [np.flatnonzero(group == k) for k in range(len(middles))]
    members = sorted(filter(len, members), key=len, reverse=True)
    return [
        Group(rank, [where[j] for j in own[np.argsort(distance[own], kind="stable")]])
        for rank, own in enumerate(members, 1)
    ]


def _middles(appearance: np.ndarray, number: int) -> np.ndarray:
    """The middles [K, L] of groups of appearances [n, L]."""
    clustered = appearance[:: -(-len(appearance) // MOST_CLUSTERED)]
    if len(clustered) == 1:
        return clustered
    tree = scipy.cluster.hierarchy.ward(clustered)
    group = scipy.cluster.hierarchy.fcluster(tree, number, "maxclust")
    return np.array([clustered[group == k].mean(0) for k in np.unique(group)])


def assign(records: Sequence[Record], groups: Sequence[Group]) -> list[Record]:
    """The records with the number of its group, `group`, for each object in place of its
    `appearance`."""
    number = {member: group.number for group in groups for member in group.members}
    return [
        one
        | {
            "objects": [
                {name: value for name, value in thing.items() if name != "appearance"}
                | {"group": number[i, k]}
                for k, thing in enumerate(one["objects"])
            ]
        }
        for i, one in enumerate(records)
    ]


def typical_appearances(records: Sequence[Record], groups: Sequence[Group]) -> np.ndarray:
    """For each group the appearance of the object that is nearest to its middle, [n, L]."""
    typical = [group.members[0] for group in groups]
    return np.array([records[i]["objects"][k]["appearance"] for i, k in typical], np.float32)
