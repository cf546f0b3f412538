"""Masks that cancel, secrets in shares, and sealed messages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ipfl.core.masks import (
    Secrets,
    combine_shares,
    has_public_key,
    is_usable_key,
    neighbours,
    own_mask,
    pair_masks,
    seal,
    seed_fingerprint,
    split_secret,
    unseal,
)
from ipfl.core.ring import RING_MASK

CLIENTS = {client: Secrets.of(bytes([client]) * 32) for client in (1, 2, 5)}


def masks_of(client: int, others, session: str = "0/1") -> np.ndarray:
    keys = {other: CLIENTS[other].public[0] for other in others}
    return pair_masks(CLIENTS[client].pair_seed, client, keys, session, 50)


def test_masks_of_pairs_cancel():
    total = sum(masks_of(client, CLIENTS.keys() - {client}) for client in CLIENTS)
    assert not (total & RING_MASK).any()
    assert np.array_equal(masks_of(1, [2]) + masks_of(2, [1]) & RING_MASK, np.zeros(50))


def test_a_mask_is_like_random_numbers_and_another_one_in_every_sum():
    mask = masks_of(1, [2])
    assert len({*mask.tolist()}) == 50
    # The mean of 50 numbers from 0 to 2^60 has a deviation of 2^60/√(12·50) = 0.041·2^60.
    assert abs(mask.astype(float).mean() / 2**60 - 0.5) < 5 * 0.041
    assert not np.array_equal(mask, masks_of(1, [2], "0/2"))
    assert not np.array_equal(own_mask(b"a" * 16, 9), own_mask(b"b" * 16, 9))


@pytest.mark.parametrize("threshold, count", [(2, 3), (3, 3), (1, 4), (4, 5)])
def test_enough_shares_are_enough_and_fewer_are_not(threshold, count):
    secret = bytes(range(16))
    shares = dict(enumerate(split_secret(secret, threshold, count)))
    for chosen in itertools.combinations(range(count), threshold):
        assert combine_shares({place: shares[place] for place in chosen}, threshold) == secret
    assert combine_shares({place: shares[place] for place in range(threshold - 1)}, threshold) is None
    if threshold > 1:
        assert secret not in shares.values()


def test_a_wrong_share_is_noticed():
    secrets = CLIENTS[1]
    shares = dict(enumerate(split_secret(secrets.own_seed, 2, 3)))
    shares[0] = bytes(16)
    assert (
        seed_fingerprint(combine_shares(shares, 2)) != secrets.public[2] == seed_fingerprint(secrets.own_seed)
    )
    assert has_public_key(secrets.pair_seed, secrets.public[0])
    assert not has_public_key(secrets.own_seed, secrets.public[0])


def test_a_sealed_message_is_for_one_reader_and_one_place():
    one, two, three = CLIENTS.values()
    content = bytes(range(32))
    sealed = seal(one, two.public[1], content, "0/1/1/2")
    assert content.hex() not in sealed
    assert unseal(two, one.public[1], sealed, "0/1/1/2") == content
    assert unseal(three, one.public[1], sealed, "0/1/1/2") is None
    assert unseal(two, one.public[1], sealed, "0/2/1/2") is None
    assert unseal(two, one.public[1], "00" + sealed[2:], "0/1/1/2") is None


def test_keys_that_nobody_can_agree_with():
    assert is_usable_key(CLIENTS[1].public[0])
    assert not is_usable_key("00" * 32)  # the point of order 1
    assert not is_usable_key("01" + "00" * 31)


def test_neighbours_on_a_ring():
    order = [4, 0, 3, 1, 2]
    assert neighbours(order, 0, 4) == [1, 2, 3, 4]
    # One step to either side.
    assert neighbours(order, 0, 2) == [3, 4]
    assert neighbours(order, 4, 2) == [0, 2]
    for client in order:
        assert all(client in neighbours(order, other, 2) for other in neighbours(order, client, 2))
