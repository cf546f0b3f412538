"""The paper's tables and figures again: one experiment each, played at three sizes, against tuned methods.

`experiments` reads what an experiment is, `plan` makes runs of it, `play` plays those that are missing,
`records` keeps their numbers, `tuning` gives every method the same grid, `measures` and `statistics` say what
is compared and how sure that is, `tables` and `pictures` show it.

Imports `report` and what is below it; imported by `cli` only.
"""
