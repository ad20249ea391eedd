"""Groups of objects that look alike: Ward's clustering of their appearances.

    records = lavae_jax.analyse(model, images, appearances=True)
    found = groups.find(records, 12)
    records = groups.assign(records, found)    # each object has the number of its group

The same records give the same groups.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from lavae_jax.objects import Record

# Memory and time grow with the square of the number of clustered objects. If there are more, every
# second, third, ... object is clustered, and the others join the nearest group.
MOST_CLUSTERED = 5_000


class Group(NamedTuple):
    """Objects that look alike.

    Attributes:
        number: 1 for the largest group, and so on.
        members: pairs of an image's index and the index of an object in it, the object nearest to
            the group's mean first.
    """

    number: int
    members: list[tuple[int, int]]


def find(records: Sequence[Record], number: int) -> list[Group]:
    """Groups the objects of images by appearance.

    Args:
        records: records of images whose objects have an `appearance`; see `analysis.analyse`.
        number: the largest number of groups; there are fewer if there are fewer different
            appearances.

    Returns:
        The groups, the largest first.
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
    """The means [K, L] of groups of appearances [n, L]."""
    clustered = appearance[:: -(-len(appearance) // MOST_CLUSTERED)]
    if len(clustered) == 1:
        return clustered
    tree = scipy.cluster.hierarchy.ward(clustered)
    group = scipy.cluster.hierarchy.fcluster(tree, number, "maxclust")
    return np.array([clustered[group == k].mean(0) for k in np.unique(group)])


def assign(records: Sequence[Record], groups: Sequence[Group]) -> list[Record]:
    """Gives each object the number of its group.

    Args:
        records: records of images whose objects have an `appearance`.
        groups: groups of all these objects.

    Returns:
        New records, whose objects have a `group` instead of an `appearance`.
    """
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
    """Collects the most typical appearance of each group: that of the object nearest to its mean.

    Args:
        records: records of images whose objects have an `appearance`.
        groups: groups of these objects.

    Returns:
        [n, L], float32, one for each group.
    """
    typical = [group.members[0] for group in groups]
    return np.array([records[i]["objects"][k]["appearance"] for i, k in typical], np.float32)
