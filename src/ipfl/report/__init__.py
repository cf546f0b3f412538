"""What people see in a terminal: progress while a run goes on, tables after it, the config with its comments.

Imports `ipfl.runs` and what is below it; imported by `deploy` and `cli`.
"""
