"""What runs at a client: data and workspace, training and scoring, what it remembers and predicts with.

`runner.ClientRunner` plays a client's part in one phase; `client.Client` is what a method's `on_<action>`
works with. Imports `ipfl.core` and `ipfl.data` only; every package above may import it: methods, engines,
stress, runs.
"""
