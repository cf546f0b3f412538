"""Data: the data sets, their hidden distributions, and who holds which points.

Belongs here: everything between a file and the arrays of one client.

- `catalogue` declares the data sets, downloads and loads them; `readers` does the work; `dataset`
  is what they return; `target_kinds` says what is predicted, and what a good prediction is.
- `distributions` makes the hidden distributions; `partitions` parses a partition and gives the shares of each
  client; `allocation` and `natural_partition` choose the points.
- `federated` defines the federated data (`FederatedData`); `from_task` makes it from the settings of a task.
- `own/`: what users have: clients in Python, tables, folders of images, Hugging Face data, a node's own file.

Imports `ipfl.core` and `ipfl.errors` only; every package above may import it.
"""

from typing import TYPE_CHECKING, Any

from ipfl.data.catalogue import DATASETS, DatasetInfo, fetch_dataset, load_dataset, locate
from ipfl.data.dataset import Dataset
from ipfl.data.distributions import DISTRIBUTIONS
from ipfl.data.federated import FederatedData, PartitionedDataset, Parts, Samples
from ipfl.data.from_task import federate
from ipfl.data.partitions import PARTITIONS
from ipfl.data.target_kinds import Target

if TYPE_CHECKING:
    from ipfl.data.own.own_clients import from_clients

__all__ = [
    "DATASETS",
    "DISTRIBUTIONS",
    "PARTITIONS",
    "Dataset",
    "DatasetInfo",
    "FederatedData",
    "PartitionedDataset",
    "Parts",
    "Samples",
    "Target",
    "federate",
    "fetch_dataset",
    "from_clients",
    "load_dataset",
    "locate",
]


def __getattr__(name: str) -> Any:
    """The readers of own data, imported only by who has some."""
    if name == "from_clients":
        from ipfl.data.own.own_clients import from_clients

        return from_clients
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
