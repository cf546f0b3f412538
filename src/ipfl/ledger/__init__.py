"""The ledger: every round of a run with its tokens, in a database (SQLAlchemy 2), and its verification.

    with RunStore.create("runs/mine", "mine", header) as store:
        store.commit_opening(transfers)
        store.commit_round(0, line, "checkpoint-0")
        assert verify(store, IPFL.replay) is None

SQLite by default, PostgreSQL by URL; the same code for both. Transfers are posted once and never changed; the
database itself refuses overdrafts. What belongs here: the store (`schema`, `database`, `headers`, `lines`,
`canonical`, `store`, `reader`), its verification (`verify`), keys and what they sign (`signing`), the signed
lines that clients keep (`statements`), and `export`.

The package imports `ipfl.core` and `ipfl.market` only: the method decides which tokens move, and gives
`verify` a replay of its rules.
"""
