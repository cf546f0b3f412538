"""The methods, one file each, server and client side together; and the registry that finds them by name.

To add one: write the file, add its line to `METHODS`. Methods of your own need no line: `module:Class` is
imported as it is, and a package may offer some under the entry point group `ipfl.methods`. Classes are imported
only when asked for, so that listing names costs nothing.

Methods import `ipfl.core` and `ipfl.client`; none but `methods.ipfl` knows of tokens.
"""

from __future__ import annotations

import dataclasses
import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from ipfl.errors import InputError, unknown

if TYPE_CHECKING:
    from ipfl.core import Method

METHODS = {
    "ditto": "ditto:Ditto",
    "fedala": "fedala:FedALA",
    "fedamp": "fedamp:FedAMP",
    "fedavg": "fedavg:FedAvg",
    "fedem": "fedem:FedEM",
    "fedfomo": "fedfomo:FedFomo",
    "fedproto": "fedproto:FedProto",
    "fedprox": "fedprox:FedProx",
    "fedsoft": "fedsoft:FedSoft",
    "finetune": "finetune:FineTune",
    "ifca": "ifca:IFCA",
    "ipfl": "ipfl.method:IPFL",
    "local": "local:Local",
    "perfedavg": "perfedavg:PerFedAvg",
}
"""Name → module and class, in this package."""

DEFAULT = "ipfl"
"""What a config without a method runs."""

REFERENCE = "fedavg"
"""Whose accuracy per client is the threshold ρ_i of PMA."""

ENTRY_POINTS = "ipfl.methods"
"""Group of entry points under which other packages offer methods."""


def method_class(name: str) -> type[Method[Any]]:
    """The class of a method: by its name, or `module:Class` of your own.

    Raises:
        InputError: There is none; lists all that there are.
    """
    if name in METHODS:
        module, _, kind = METHODS[name].partition(":")
        found: Any = getattr(importlib.import_module(f"ipfl.methods.{module}"), kind)
    elif ":" in name:
        from ipfl.core.plugins import load_callable

        found = load_callable(name, "method")
    else:
        offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
        if name not in offered:
            raise unknown("method", name, [*METHODS, *offered, "module:Class"])
        found = offered[name].load()
    return _checked(found, name)


def _checked(found: Any, name: str) -> type[Method[Any]]:
    from ipfl.core import Method

    if not (isinstance(found, type) and issubclass(found, Method) and dataclasses.is_dataclass(found)):
        raise InputError(f"method {name!r} is not a frozen dataclass that extends ipfl.core.Method")
    return found


def method_reference(method: Method[Any]) -> str:
    """What `method_class` finds a method's class by: its name, or `module:Class`."""
    kind = type(method)
    registered = METHODS.get(method.name, "")
    if f"{kind.__module__}:{kind.__qualname__}" == f"ipfl.methods.{registered}":
        return method.name
    offered = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return method.name if method.name in offered else f"{kind.__module__}:{kind.__qualname__}"


def method_fields(name: str) -> tuple[str, ...]:
    """Names of a method's hyper-parameters."""
    return tuple(field.name for field in dataclasses.fields(method_class(name)))  # type: ignore[arg-type]


def method(name: str, /, **settings: Any) -> Method[Any]:
    """Builds a method by its name; the keywords are its hyper-parameters (`ipfl methods NAME` lists them)."""
    from pydantic import ValidationError

    from ipfl.core.sections import RENAMED_KEYS, one_line

    kind, known = method_class(name), method_fields(name)
    for key in settings:
        if key not in known:
            if new := RENAMED_KEYS.get(f"method.{key}"):
                raise InputError(f"method.{key} is now called {new}")
            raise unknown(f"hyper-parameter of {name}", key, known)
    try:
        return kind(**settings)
    except ValidationError as error:
        raise InputError(one_line(error, None, "method")) from error


def method_settings(method: Method[Any]) -> dict[str, Any]:
    """A method as a config has it: its name and all hyper-parameters; JSON-able, also of a user's own class."""
    from pydantic_core import to_jsonable_python

    fields: dict[str, Any] = dataclasses.asdict(method) if dataclasses.is_dataclass(method) else {}
    return {"name": method_reference(method), **to_jsonable_python(fields, fallback=repr)}


def check_clusters(method: Method[Any], clients: int) -> None:
    """Refuses more clusters than there are clients to train them."""
    clusters = getattr(method, "clusters", None)
    if isinstance(clusters, int) and clusters > clients:
        raise InputError(f"method.clusters = {clusters}, but there are only {clients} clients to train with")
