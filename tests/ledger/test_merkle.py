"""Merkle trees: the vectors of RFC 6962's reference implementation, and that no proof fits anything else."""

from hypothesis import given
from hypothesis import strategies as st

from ipfl.ledger.merkle import MerkleTree, leaf_hash, root_of_path

# Entries and roots of github.com/google/certificate-transparency, cpp/merkletree/merkle_tree_test.cc.
ENTRIES = [
    bytes.fromhex(entry)
    for entry in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LEAVES = [leaf_hash(entry) for entry in ENTRIES]


def test_published_roots():
    assert [MerkleTree(LEAVES[:size]).root.hex() for size in range(1, 9)] == ROOTS
    # SHA-256 of nothing
    assert MerkleTree([]).root.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_published_path():
    """The path of entry 5 in a tree of 8, from the same file."""
    assert [node.hex() for node in MerkleTree(LEAVES).audit_path(5)] == [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=40), st.data())
def test_a_path_fits_its_own_entry_place_and_tree_only(entries, data):
    leaves = [leaf_hash(entry) for entry in entries]
    index = data.draw(st.integers(0, len(leaves) - 1))
    tree = MerkleTree(leaves)
    path, root = tree.audit_path(index), tree.root
    assert root_of_path(leaves[index], index, len(leaves), path) == root
    assert root_of_path(leaf_hash(b"another"), index, len(leaves), path) != root
    assert root_of_path(leaves[index], index, len(leaves), [*path, root]) is None  # longer than the way
    if path:
        assert root_of_path(leaves[index], index, len(leaves), path[:-1]) is None
        other = data.draw(st.integers(0, len(leaves) - 1))
        if leaves[other] != leaves[index]:
            assert root_of_path(leaves[index], other, len(leaves), tree.audit_path(other)) != root


@given(st.integers(1, 40), st.dictionaries(st.integers(0, 39), st.binary(max_size=3), max_size=5))
def test_replaced_leaves_give_the_tree_that_is_made_of_them(size, changes):
    leaves = [leaf_hash(bytes([number])) for number in range(size)]
    changed = {index: leaf_hash(entry) for index, entry in changes.items() if index < size}
    tree = MerkleTree(leaves)
    tree.replace(changed)
    afresh = MerkleTree([changed.get(index, leaf) for index, leaf in enumerate(leaves)])
    assert tree.root == afresh.root
    assert all(tree.audit_path(index) == afresh.audit_path(index) for index in range(size))
