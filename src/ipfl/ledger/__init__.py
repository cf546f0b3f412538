"""The ledger: every round of a run with its tokens, in a database (SQLAlchemy 2), and its verification.

    with RunStore.create("runs/mine", "mine", header) as store:
        store.commit_opening(transfers)
        store.commit_round(0, line, "checkpoint-0")
        assert verify(store, IPFL.replay) is None

SQLite by default, PostgreSQL by URL; the same code for both. Transfers are posted once and never changed; the
database itself refuses overdrafts. What belongs here: accounts and transfers (`accounts`), the store
(`schema`, `migrations`, `database`, `headers`, `lines`, `canonical`, `store`, `reader`), its verification
(`verify`, `findings`), evidence against those who could rewrite it (`signing`, `signatures`, `statements`,
`run_accounts`, `merkle`, `anchors`), and `export`.

The package imports `ipfl.core` only: the method decides which tokens move, and gives `verify` a replay of its
rules. `methods.ipfl`, `engines.flower`, `runs` and the packages above may import it, and no other method.
"""
