"""The form that starts a run: made from the config's own schema, checked by the config itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from ipfl.config.run_config import Config
from ipfl.errors import InputError
from ipfl.methods import METHODS, REFERENCE, method_class

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
FIRST_KEYS = (
    "task.dataset",
    "task.distributions",
    "task.partition",
    "task.clients",
    "task.samples",
    "task.model",
    "method.clusters",
    "rounds",
    "seed",
)
"""What the form asks first; everything else is folded away by section."""
LEFT_OUT = frozenset({"task.path", "task.data_dir", "method.name"})
"""Paths on the server are not chosen from a browser; methods have a list of their own."""
CODE_MARK = "`module:"
"""In the description of every setting that can name code to import."""
TITLES = {
    "dataset": "Data set",
    "distributions": "Hidden distributions",
    "partition": "Partition",
    "clients": "Clients",
    "samples": "Samples per client",
    "model": "Model",
    "clusters": "Clusters K",
    "rounds": "Rounds",
    "seed": "Seed",
}


@dataclass(frozen=True)
class FormField:
    """One setting of the form."""

    key: str
    title: str
    description: str
    kind: str
    """choice | integer | number | boolean | text"""
    default: str
    choices: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class Form:
    """All settings, in the order in which they are shown."""

    first: tuple[FormField, ...]
    sections: Mapping[str, tuple[FormField, ...]]
    notes: Mapping[str, str]
    """Section → what it is about."""
    methods: Mapping[str, str]
    """Name → summary."""
    hyperparameters: Mapping[str, tuple[FormField, ...]]
    """Method → its own settings; those that have none are left out."""

    def fields(self) -> dict[str, FormField]:
        """All of them by key."""
        parts = (self.first, *self.sections.values(), *self.hyperparameters.values())
        return {field.key: field for part in parts for field in part}


@cache
def make_form() -> Form:
    """The form of the config as it is; made once, because it is needed for every key that is typed."""
    schema = Config.model_json_schema()
    fields = {field.key: field for field in _fields(schema)}
    sections: dict[str, list[FormField]] = {}
    for key, field in fields.items():
        if key not in FIRST_KEYS:
            sections.setdefault(key.rpartition(".")[0] or "run", []).append(field)
    order = sorted(sections, key=lambda name: name != "task")  # what is learned comes first
    notes = {name: _note(schema, name) for name in order}
    return Form(
        tuple(fields[key] for key in FIRST_KEYS),
        {name: tuple(sections[name]) for name in order},
        notes,
        # Not `method_summary`, which parses source: Python 3.11 may fail at that in two threads at once.
        {name: method_class(name).summary for name in METHODS},
        {name: found for name in METHODS if (found := _hyperparameters(name))},
    )


def _hyperparameters(method: str) -> tuple[FormField, ...]:
    """A method's own settings, by `METHOD:KEY`; those that all methods share are asked for once."""
    schema = TypeAdapter(method_class(method)).json_schema()
    every = _fields({"properties": {}, **schema})
    return tuple(
        replace(field, key=f"{method}:{field.key}")
        for field in every
        if f"method.{field.key}" not in FIRST_KEYS
    )


def _note(schema: Mapping[str, Any], section: str) -> str:
    """The first sentence of a section's own description."""
    reference = schema["properties"].get(section, {}).get("$ref", "")
    text: str = schema["$defs"].get(reference.rpartition("/")[2], {}).get("description", "")
    return text.partition("\n")[0].replace("`", "") or "What concerns the whole run."


def _fields(schema: Mapping[str, Any], within: str = "") -> list[FormField]:
    found: list[FormField] = []
    definitions = schema.get("$defs", {})
    for name, one in schema["properties"].items():
        key = f"{within}.{name}" if within else name
        if "$ref" in one:
            inner = definitions[one["$ref"].rpartition("/")[2]]
            found += _fields(inner | {"$defs": definitions}, key)
        elif key not in LEFT_OUT:
            found.append(_field(key, name, one))
    return found


def _field(key: str, name: str, schema: Mapping[str, Any]) -> FormField:
    options = [schema, *schema.get("anyOf", ())]
    kinds = [option["type"] for option in options if option.get("type") not in (None, "null")]
    constants = tuple(str(o["const"]) for o in options if "const" in o)
    choices = tuple(str(choice) for option in options for choice in option.get("enum", ()))
    kind = kinds[0] if len(kinds) == 1 else "text"
    choices = _known_values(key) if key in ("task.dataset", "task.model") else choices
    if choices and "array" not in kinds:
        kind = "choice"
    minima = [o[k] for o in options for k in ("minimum", "exclusiveMinimum") if k in o]
    maxima = [o[k] for o in options for k in ("maximum", "exclusiveMaximum") if k in o]
    return FormField(
        key,
        TITLES.get(name, name.replace("_", " ")),
        "" if key in ("task.dataset", "task.model") else schema.get("description", ""),
        kind if kind in ("choice", "integer", "number", "boolean") else "text",
        _default_text(schema.get("default")),
        choices,
        constants or _suggested_values(key),
        minima[0] if minima else None,
        maxima[0] if maxima and maxima[0] < 2**31 - 1 else None,
    )


def _default_text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _known_values(key: str) -> tuple[str, ...]:
    """What a browser may choose from: no `module:callable`, which would be imported, and no files."""
    from ipfl.data.catalogue import DATASETS
    from ipfl.training.architectures import MODEL_FACTORIES

    bundled = (name for name, info in DATASETS.items() if info.read_user_file is None)
    default = Config().task.model  # such as auto, which is not a model of its own
    models = dict.fromkeys([default, *MODEL_FACTORIES])
    return tuple(bundled) if key == "task.dataset" else tuple(models)


def _suggested_values(key: str) -> tuple[str, ...]:
    if key == "task.partition":
        return ("10:90", "30:70", "linear", "random", "classes:2", "dirichlet:0.3", "natural")
    if key == "task.distributions":
        return ("permuted", "rotated", "halves", "groups", "natural", "iid")
    return ()


@dataclass(frozen=True)
class StartRequest:
    """What a filled-in form asks for."""

    name: str
    methods: tuple[str, ...]
    sets: tuple[str, ...]

    def arguments(self, folder: str) -> list[str]:
        """Of the command `ipfl`."""
        settings = [part for one in self.sets for part in ("--set", one)]
        if len(self.methods) == 1:
            # Without the default method's name: a shorter command for people.
            return ["run", *settings, "--out", folder, "--profile"]
        return ["compare", "--methods", ",".join(self.methods), *settings, "--out", folder]


def read_form(given: Mapping[str, Sequence[str]]) -> StartRequest:
    """What was filled in, checked as a config file is.

    Args:
        given: Dotted key → what was sent; `name` and `methods` beside them.

    Raises:
        InputError: What is wrong, on one line.
    """
    name = (list(given.get("name", ())) or [""])[0].strip()
    if not RUN_NAME.fullmatch(name):
        raise InputError("the name of a run is made of letters, digits, - and _, at most 60 of them")
    methods = tuple(dict.fromkeys(given.get("methods", ())))
    if not methods:
        raise InputError("choose at least one method")
    for method in methods:
        if method not in METHODS:
            raise InputError(f"{method!r} cannot be started from here; see `ipfl methods`")
    fields = make_form().fields()
    sets = []
    own: dict[str, list[str]] = {method: [] for method in methods}
    for key, values in given.items():
        if key in ("name", "methods"):
            continue
        if key not in fields:
            raise InputError(f"{key} cannot be set from here")
        value = (list(values) or [""])[-1].strip()
        if value in ("", fields[key].default):
            continue
        if fields[key].choices and value not in fields[key].choices and fields[key].kind == "choice":
            raise InputError(f"{key} is one of {', '.join(fields[key].choices)}")
        if CODE_MARK in fields[key].description and ":" in value:
            raise InputError(f"{key} would import code: start such a run in a terminal")
        if "\n" in value or len(value) > 200:
            raise InputError(f"{key} is too long")
        method, _, parameter = key.rpartition(":")
        if not method:
            sets.append(f"{key}={value}")
        elif method in own:  # what was set for a method that is not chosen does not matter
            if len(methods) > 1 and set(value) & set(",:"):
                raise InputError(f"{key} with a comma or colon: start such a comparison in a terminal")
            own[method].append(f"{parameter}={value}")
    samples = (list(given.get("task.samples", ())) or [""])[-1].strip()
    if any(one.startswith("task.dataset=") for one in sets) and samples == fields["task.samples"].default:
        sets.append(f"task.samples={samples}")  # of another data set the default is all there are
    if len(methods) == 1 and methods[0] != Config().method.name:
        sets.append(f"method.name={methods[0]}")
    if len(methods) == 1:
        sets += [f"method.{one}" for one in own[methods[0]]]
    else:
        methods = tuple(":".join([method, *own[method]]) for method in methods)
    config = Config.load(None, sets)
    config.build_methods(dict.fromkeys([*methods, REFERENCE]) if len(methods) > 1 else methods)
    return StartRequest(name, methods, tuple(sets))
