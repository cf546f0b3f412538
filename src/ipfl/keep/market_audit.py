"""Verifies the ledger of a run with the replay of its own method."""

from __future__ import annotations

from ipfl.errors import InputError
from ipfl.ledger.findings import Finding
from ipfl.ledger.store import RunStore
from ipfl.ledger.verify import verify
from ipfl.methods import method_class


def verify_run(
    store: RunStore, *, public_key: str | None = None, expect: str | None = None
) -> Finding | None:
    """The first thing that is wrong with a run's history; None if all is well."""
    if not store.header.get("rules"):
        return verify(store, public_key=public_key, expect=expect)
    name = str(store.header.get("method"))
    if ":" in name:  # a store from elsewhere must not make us import code
        text = f"the market of {name!r} can be replayed in Python only: verify(store, YourMethod.replay)"
        return Finding(None, None, text)
    try:
        replay = getattr(method_class(name), "replay", None)
        return verify(store, replay, public_key=public_key, expect=expect)
    except InputError as error:
        return Finding(None, None, f"the run's method is not known here: {error}")
