from __future__ import annotations

import numpy as np

from ipfl.core import stream
from ipfl.methods.shared.initial_clustering import f1_from_counts, initial_clusters, varied_classes

# Clients 0, 2, 4 know class 0, clients 1, 3, 5 know class 2; class 1 is the same for all.
F1 = np.array(
    [[0.9, 0.5, 0.1], [0.1, 0.5, 0.9], [0.8, 0.5, 0.2], [0.2, 0.5, 0.8], [0.9, 0.5, 0.2], [0.1, 0.5, 0.8]]
)


def test_f1_by_hand() -> None:
    # 2·3/(2·3 + 1 + 2) = 2/3; nothing found of what there was: 0; a class that never occurs: 0.
    f1 = f1_from_counts(np.array([3, 0, 0]), np.array([1, 0, 0]), np.array([2, 4, 0]))
    np.testing.assert_allclose(f1, [2 / 3, 0, 0])


def test_most_varied_classes_first() -> None:
    assert varied_classes(F1, 2).tolist() == [0, 2]
    assert varied_classes(F1, 9).tolist() == [0, 2, 1]


def test_varied_classes_decide_not_the_noisy_rest() -> None:
    # Class 1 varies a little and across the groups; if only the most varied class counts, it cannot mislead.
    f1 = F1.copy()
    f1[:, 1] = [0.4, 0.4, 0.4, 0.6, 0.6, 0.6]
    found = initial_clusters(f1, np.arange(6), np.arange(6), 2, stream(1, "warmstart"), 1)
    assert found[0] == found[2] == found[4] != found[1]


def test_clients_that_did_not_answer_are_spread_at_random() -> None:
    # 6 of 206 answered, with ids from 100 on; the others land in both clusters, about half of 200 each
    # (standard deviation 7).
    everyone, answered = np.arange(206), np.arange(100, 106)
    found = initial_clusters(F1, answered, everyone, 2, stream(2, "warmstart"), 2)
    assert found[100] == found[102] == found[104] != found[101]
    assert 65 < np.delete(found, answered).sum() < 135
    again = initial_clusters(F1, answered, everyone, 2, stream(2, "warmstart"), 2)
    assert found.tolist() == again.tolist()


def test_fewer_answers_or_groups_than_clusters() -> None:
    one = initial_clusters(F1[:1], np.array([0]), np.arange(3), 4, stream(3, "x"), 2)
    assert ((one >= 0) & (one < 4)).all()
    alike = initial_clusters(np.ones((5, 3)), np.arange(5), np.arange(5), 2, stream(3, "x"), 2)
    assert len(set(alike.tolist())) == 1


def test_no_usable_answer_at_all() -> None:
    found = initial_clusters(np.full((1, 3), np.nan), np.array([0]), np.arange(4), 2, stream(4, "x"), 2)
    assert found.shape == (4,)
