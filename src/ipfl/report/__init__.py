"""What people see: progress while a run goes on, tables after it, the commented config, figures, a page.

Imports `ipfl.runs` and what is below it; imported by `deploy` and `cli`.
"""
