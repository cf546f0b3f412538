"""Running a method on a task: config, the only round loop, evaluation, what is kept of a run, comparisons.

`run.run` is `ipfl.run`. Imports everything below it (`core`, `data`, `client`, `methods`, `engines.local`,
`stress`, `ledger`); imported by `deploy`, `report` and `cli`.
"""
