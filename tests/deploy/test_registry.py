"""The accounts file: one account per key, one key per account."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipfl.deploy.credentials import fingerprint, write_key_pair
from ipfl.deploy.registry import Registry, client_lookup
from ipfl.errors import InputError


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Four public keys."""
    lines = []
    for _ in range(4):
        folder = tmp_path_factory.mktemp("node")
        write_key_pair(folder)
        lines.append((folder / "key.pub").read_text())
    return lines


def test_a_key_finds_its_client_and_an_unknown_key_finds_nobody(keys: list[str], tmp_path: Path) -> None:
    registry = Registry().with_account(keys[0], 5).with_account(keys[1]).with_account(keys[2], 2)
    registry.save(tmp_path / "accounts.json")
    read = Registry.load(tmp_path / "accounts.json")
    assert read == registry
    assert read.clients() == (2, 5, 6)  # the second key got the next id after 5
    client_of = client_lookup(tmp_path / "accounts.json")
    assert [client_of(key.encode()) for key in keys] == [5, 6, 2, None]
    assert client_of(b"no key at all") is None


def test_a_second_key_for_a_client_needs_an_explicit_replacement(keys: list[str]) -> None:
    registry = Registry().with_account(keys[0], 0, "ward 7")
    with pytest.raises(InputError, match=r"client 0 has an account with key SHA256:.* already"):
        registry.with_account(keys[1], 0)
    changed = registry.with_account(keys[1], 0, replace=True)
    assert changed.clients_by_key() == {fingerprint(keys[1].encode()): 0}
    assert changed.accounts[0].name == "ward 7"
    with pytest.raises(InputError, match="client 3 has no account"):
        registry.with_account(keys[1], 3, replace=True)


def test_one_key_cannot_have_two_accounts(keys: list[str]) -> None:
    registry = Registry().with_account(keys[0], 0).with_account(keys[1], 1)
    same_key = keys[0].strip() + " another-comment"
    with pytest.raises(InputError, match="clients 0 and 2 have the same key"):
        registry.with_account(same_key, 2)
    with pytest.raises(InputError, match="clients 0 and 1 have the same key"):
        registry.with_account(same_key, 1, replace=True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not an accounts file"),
        ("[]", "not an accounts file"),
        ('{"accounts": [{"client": 0}]}', "key Field required"),
        ('{"accounts": [{"client": -1, "key": "KEY"}]}', "client should be greater than or equal to 0"),
        ('{"accounts": [{"client": 0, "key": "x"}]}', "not a public key"),
        ('{"accounts": [{"client": 0, "key": "KEY"}, {"client": 0, "key": "KEY"}]}', "two accounts"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name(
    keys: list[str], tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "accounts.json"
    path.write_text(content.replace("KEY", keys[0].strip()))
    with pytest.raises(InputError, match=reason) as caught:
        Registry.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_lookup_follows_changes_of_the_file(keys: list[str], tmp_path: Path) -> None:
    """The key of a client is replaced while a run goes on: from then on the old key has no account."""
    path = tmp_path / "accounts.json"
    with pytest.raises(InputError, match="cannot read the accounts"):
        client_lookup(path)
    Registry().with_account(keys[0], 3).save(path)
    client_of = client_lookup(path)
    assert client_of(keys[0].encode()) == 3
    Registry.load(path).with_account(keys[1], 3, replace=True).save(path)
    assert [client_of(key.encode()) for key in keys[:2]] == [None, 3]
    path.write_text("half a fi")  # someone edits it: the last valid content counts
    assert client_of(keys[1].encode()) == 3
