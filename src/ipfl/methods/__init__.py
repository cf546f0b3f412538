"""The registry of methods: one file each, server and client side together.

To add one: write the file, add its line here. Classes are imported only when asked for, so that listing
names costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ipfl.errors import unknown

if TYPE_CHECKING:
    from ipfl.core import Method

METHODS = {
    "ditto": "Ditto",
    "fedala": "FedALA",
    "fedamp": "FedAMP",
    "fedavg": "FedAvg",
    "fedem": "FedEM",
    "fedfomo": "FedFomo",
    "fedproto": "FedProto",
    "fedprox": "FedProx",
    "fedsoft": "FedSoft",
    "finetune": "FineTune",
    "ifca": "IFCA",
    "ipfl": "IPFL",
    "local": "Local",
    "perfedavg": "PerFedAvg",
}
"""Name (and file) → class."""

DEFAULT = "ipfl"
"""What a config without a method runs."""

REFERENCE = "fedavg"
"""Whose accuracy per client is the threshold ρ_i of PMA."""


def method_class(name: str) -> type[Method[Any]]:
    """The class of a method; a name that does not exist is an input error that lists all."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    found: type[Method[Any]] = getattr(importlib.import_module(f"ipfl.methods.{name}"), METHODS[name])
    return found
