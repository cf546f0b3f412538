"""For people: progress while a run goes on, tables after it, the commented config, figures, a page.

Imports `ipfl.runs` and what is below it; `api`, `console`, `deploy`, `reproduce` and `cli` may import it.
"""
