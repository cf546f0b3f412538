"""The run store and its ledger: every round of a run, its tokens included, in a database (SQLAlchemy 2).

    with RunStore.create("runs/mine", "mine", header) as store:
        store.commit_opening(transfers)
        store.commit_round(0, line, "checkpoint-0")
        assert verify(store) is None

SQLite by default, PostgreSQL by URL; the same code for both. Transfers are posted once and never changed;
the database itself refuses overdraft. `verify` replays every round's auction and rewards from what was
recorded (Eqs. consumer_cost, update_available_tokens, reimbursement_utility, reimbursement,
reward_distribution, all in `ipfl.market.tokens`).
"""

from __future__ import annotations

from ipfl.store.database import StoreError
from ipfl.store.reading import Account, Entry, Reader
from ipfl.store.runs import RunStore
from ipfl.store.verification import Finding, verify

__all__ = ["Account", "Entry", "Finding", "Reader", "RunStore", "StoreError", "verify"]
