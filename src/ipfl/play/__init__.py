"""One run: the only round loop, the driver of a round, and evaluation."""
