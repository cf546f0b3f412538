"""Running a method on a task: config, the only round loop, evaluation, what is kept of a run, comparisons.

`api.run`, which is `ipfl.run`, calls `run.run`. Imports everything below it (`core`, `data`, `client`,
`methods`, `engines.local`, `stress`, `ledger`); `report` and the packages above may import it.
"""
