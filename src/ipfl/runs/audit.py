"""Verifies the ledger of a run with the replay of its own method."""

from __future__ import annotations

from ipfl.errors import InputError
from ipfl.ledger.store import RunStore
from ipfl.ledger.verify import Finding, verify
from ipfl.methods import method_class


def verify_run(store: RunStore) -> Finding | None:
    """The first thing that is wrong with a run's history; None if all is well."""
    if not store.header.get("rules"):
        return verify(store)
    name = str(store.header.get("method"))
    if ":" in name:  # a store from elsewhere must not make us import code
        text = f"the market of {name!r} can be replayed in Python only: verify(store, YourMethod.replay)"
        return Finding(None, None, text)
    try:
        return verify(store, getattr(method_class(name), "replay", None))
    except InputError as error:
        return Finding(None, None, f"the run's method is not known here: {error}")
