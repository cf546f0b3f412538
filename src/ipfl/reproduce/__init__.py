"""The paper's tables and figures again: one experiment each, played at three sizes, against tuned methods.

`experiments` reads the files, `plan` makes runs of them, `reproduction` plays those that are missing
(`ipfl.study.run_list`), `results_file` keeps their numbers, `tuning` gives all methods the same
grid, `measures`, `paper_tables` and `pictures` show what came out.

Imports `report` and what is below it; imported by `cli` only.
"""
