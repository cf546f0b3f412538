"""The ledger: every round of a run with its tokens, in an SQLite file, and its verification.

    store = RunStore.create("runs/mine", "mine", header)
    store.commit_opening(transfers)
    store.commit_round(0, line, "checkpoint-0")
    assert verify(store, IPFL.replay) is None

Transfers are posted once and never changed; the database itself refuses overdrafts. What belongs here: the
store (`schema`, `database`, `lines`, `canonical`, `store`, `reader`), its verification (`verify`), keys and
what they sign (`signing`), the lines that clients keep (`statements`), and `export`.

The package imports `ipfl.core` and `ipfl.market` only: the method decides which tokens move, and gives
`verify` a replay of its rules.
"""
