"""Clients that are named by people: by id or by name."""

from __future__ import annotations

from collections.abc import Mapping

from ipfl.errors import InputError, near_hint


def find_client(text: str, names: Mapping[int, str]) -> int:
    """The id of a client that is given by its id or its name; a name comes first.

    Args:
        text: What was given.
        names: Of the clients that have one, by id.

    Raises:
        InputError: It is neither a name nor a number.
    """
    by_name = {name: client for client, name in names.items()}
    if text in by_name:
        return by_name[text]
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) >= 2**31:
        raise InputError(f"there is no client {text!r}{near_hint(text, by_name)}")
    return int(text)
