"""Data: sets, hidden distributions, partitions over clients, drift.

`federate(task, seed)` gives the federation of a task, `from_clients(...)` that of your own clients;
`load` reads a data set by name, `fetch` downloads its original.
"""

from ipfl.data.assembly import federate
from ipfl.data.catalogue import DATASETS, Source, available, fetch, load
from ipfl.data.dataset import Dataset
from ipfl.data.distributions import DISTRIBUTIONS
from ipfl.data.federated import FederatedData, Parts, Samples
from ipfl.data.federation import Federation
from ipfl.data.own import from_clients
from ipfl.data.partitions import PARTITIONS

__all__ = [
    "DATASETS",
    "DISTRIBUTIONS",
    "PARTITIONS",
    "Dataset",
    "FederatedData",
    "Federation",
    "Parts",
    "Samples",
    "Source",
    "available",
    "federate",
    "fetch",
    "from_clients",
    "load",
]
