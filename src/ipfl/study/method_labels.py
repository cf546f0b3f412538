"""Labels of the methods of a comparison: name and settings, or labels of the user's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from ipfl.config.run_config import RunConfig
from ipfl.config.train_section import AdaptConfig
from ipfl.config.whole_config import Config, last_steps
from ipfl.core import Method
from ipfl.errors import InputError
from ipfl.methods import (
    METHODS,
    check_last_step,
    check_method,
    check_parts,
    check_target,
    fields_of,
    hyperparameter,
)
from ipfl.methods import method as build_method
from ipfl.training.network import Network

Methods = Sequence[str | Method[Any]] | Mapping[str, str | Method[Any]]
"""Names or methods, as they are or by the labels that they get."""


def suitable_methods(network: Network, config: RunConfig) -> list[str]:
    """Names of this package's methods that suit a network, what it predicts, and `[adapt]`."""
    found = []
    for name in METHODS:
        with suppress(InputError):
            chosen = build_method(name)
            check_parts(chosen, network)
            check_target(chosen, network.target.kind)
            check_last_step(chosen, config.adapt)
            found.append(name)
    return found


class Row(NamedTuple):
    """A row of a comparison."""

    method: Method[Any]
    adapt: AdaptConfig
    """The last step at its clients."""


def label_methods(
    config: RunConfig, methods: Methods, reference: str | Method[Any]
) -> tuple[dict[str, Row], str]:
    """The rows of a comparison by their labels, the reference included, and the label of the reference.

    Raises:
        InputError: There is no such method, or two have the same label.
    """
    if isinstance(methods, str):
        raise InputError(f"expected a list of methods, such as [{methods!r}]")
    source = config if isinstance(config, Config) else Config()
    given: dict[str, Method[Any] | None] = {}
    names_of: dict[str, str] = {}
    if isinstance(methods, Mapping):
        for label, one in methods.items():
            given[label] = source.build_methods([one])[one] if isinstance(one, str) else check_method(one)
            if isinstance(one, str):
                names_of[label] = one
    else:
        for one in methods:
            _add_method(given, one)
    if not (isinstance(reference, str) and reference in given):
        _add_method(given, reference)
    names = [label for label, method in given.items() if method is None]
    built = source.build_methods(names)
    reference_label = reference if isinstance(reference, str) else label_of(reference)
    adapts = last_steps(config.adapt, [names_of.get(label, label) for label in given])
    rows = {
        label: Row(built[label] if one is None else one, adapts[names_of.get(label, label)])
        for label, one in given.items()
    }
    for row in rows.values():
        check_last_step(*row)
    return rows, reference_label


def _add_method(given: dict[str, Method[Any] | None], one: str | Method[Any]) -> None:
    label, method = (one, None) if isinstance(one, str) else (label_of(check_method(one)), one)
    if label in given and given[label] != method:
        raise InputError(f"two methods are called {label!r}: give them as a dict, by labels of your own")
    given[label] = method


def label_of(method: Method[Any]) -> str:
    """The label of a method: its name, and the settings that are not its defaults."""
    kind = type(method)
    known: tuple[str, ...] = fields_of(kind) if is_dataclass(method) else ()
    plain = kind() if known else method
    settings = [
        f"{key}={value}"
        for key in known
        if (value := hyperparameter(method, key)) != hyperparameter(plain, key)
    ]
    return ":".join([method.name, *settings])


FORBIDDEN_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
"""Characters that Windows does not allow in the name of a folder."""


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """The folder of each method of a comparison: its label, with a plus sign for what Windows does not allow.

    No two are equal, also where capitals do not count.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for label in labels:
        name = FORBIDDEN_IN_NAMES.sub("+", label).rstrip(". ") or "method"
        unique, number = name, 1
        while unique.casefold() in taken:
            number += 1
            unique = f"{name}-{number}"
        taken.add(unique.casefold())
        names[label] = unique
    return names
