"""Data: sets, hidden distributions, partitions over clients, drift."""
