"""Merkle trees by RFC 6962, section 2.1 (Certificate Transparency): one hash over many entries.

The hash of a whole tree stands for all its entries; that one of them is in it is shown by the few hashes
beside its way to the root (its audit path), without the other entries.

Written here because there is no maintained library: pymerkle 7.0.0 is under the GPL, pins an exact version
of its dependency, and warns that nobody has audited it. The tests are the published vectors of RFC 6962's
reference implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise


def leaf_hash(entry: bytes) -> bytes:
    """The hash of one entry. It begins with another byte than a node, so neither can stand for the other."""
    return sha256(b"\0" + entry).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def _next_level(level: Sequence[bytes]) -> list[bytes]:
    """The nodes above these; the last one goes up as it is if it has no partner."""
    nodes = [_node_hash(level[n], level[n + 1]) for n in range(0, len(level) - 1, 2)]
    return nodes if len(level) % 2 == 0 else [*nodes, level[-1]]


class MerkleTree:
    """The tree over these leaf hashes."""

    def __init__(self, leaves: Iterable[bytes]):
        self._levels = [list(leaves)]
        while len(self._levels[-1]) > 1:
            self._levels.append(_next_level(self._levels[-1]))

    def replace(self, leaves: Mapping[int, bytes]) -> None:
        """Other hashes for some leaves; of the rest only the nodes above them are made anew."""
        for index, leaf in leaves.items():
            self._levels[0][index] = leaf
        places = set(leaves)
        for below, level in pairwise(self._levels):
            places = {index // 2 for index in places}
            for index in places:
                pair = below[2 * index : 2 * index + 2]
                level[index] = _node_hash(*pair) if len(pair) == 2 else pair[0]

    @property
    def root(self) -> bytes:
        """The hash of the whole tree."""
        (root,) = self._levels[-1] or [sha256(b"").digest()]
        return root

    def audit_path(self, index: int) -> list[bytes]:
        """The hashes that lead from one leaf to the root, the lowest first."""
        if not 0 <= index < len(self._levels[0]):
            raise IndexError(f"a tree of {len(self._levels[0])} entries has no entry {index}")
        path = []
        for level in self._levels[:-1]:
            partner = index ^ 1
            if partner < len(level):
                path.append(level[partner])
            index //= 2
        return path


def root_of_path(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """The root of a tree of that size in which the leaf has this place and path; None: there is none."""
    if not 0 <= index < size:
        return None
    found, rest, last = leaf, list(path), size - 1
    while last > 0:
        if index % 2 == 1 or index < last:  # it has a partner
            if not rest:
                return None
            partner = rest.pop(0)
            found = _node_hash(partner, found) if index % 2 == 1 else _node_hash(found, partner)
        index, last = index // 2, last // 2
    return None if rest else found
