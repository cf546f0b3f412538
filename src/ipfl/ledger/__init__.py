"""The ledger: every round of a run, its tokens included, in a database (SQLAlchemy 2), and whether it is true.

    with RunStore.create("runs/mine", "mine", header) as store:
        store.commit_opening(transfers)
        store.commit_round(0, line, "checkpoint-0")
        assert verify(store, IPFL.replay) is None

SQLite by default, PostgreSQL by URL; the same code for both. Transfers are posted once and never changed; the
database itself refuses overdraft. What belongs here: accounts and transfers (`accounts`), the store (`schema`,
`migrations`, `database`, `store`, `posting`, `reader`), its check (`verify`) and `export`. The package imports
`ipfl.core` only: the rules by which tokens move belong to the method, which gives `verify` a replay of them.
"""
