"""The methods, one file each, server and client side together; and the registry that finds them by name.

To add one: write the file, add its line to `METHODS`. Methods from outside need no line: a config names one
of your own, or of an installed package, as `module:Class`. Classes are imported only when asked for, so that
listing names costs nothing.

Methods import `ipfl.core`, `ipfl.data` and `ipfl.client`; only the two IP-FLs know of tokens. No module
imports a method (the registry finds it by its name), but for the paper's formulas, which `ipfl_plus` uses.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Container, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ipfl.errors import InputError, unknown

if TYPE_CHECKING:
    from ipfl.config.train_section import AdaptConfig
    from ipfl.core import Method
    from ipfl.training.network import Network

METHODS = {
    "ditto": "personal.ditto:Ditto",
    "fedala": "personal.fedala:FedALA",
    "fedamp": "personal.fedamp:FedAMP",
    "fedavg": "one_model.fedavg:FedAvg",
    "fedbn": "personal.fedbn:FedBN",
    "fedem": "clusters.fedem:FedEM",
    "fedfomo": "personal.fedfomo:FedFomo",
    "fedper": "personal.fedper:FedPer",
    "fedproto": "personal.fedproto:FedProto",
    "fedprox": "one_model.fedprox:FedProx",
    "fedsoft": "clusters.fedsoft:FedSoft",
    "finetune": "one_model.finetune:FineTune",
    "ifca": "clusters.ifca:IFCA",
    "ipfl": "ipfl:IPFL",
    "ipfl-plus": "ipfl_plus.ipfl_plus:IPFLPlus",
    "local": "personal.local_training:Local",
    "perfedavg": "one_model.perfedavg:PerFedAvg",
}
"""Name → module and class, in this package."""

DEFAULT = "ipfl-plus"
"""What a config without a method runs."""

REFERENCE = "fedavg"
"""Whose accuracy per client is the threshold ρ_i of PMA."""


def method_class(name: str) -> type[Method[Any]]:
    """The class of a method: by its name, or `module:Class` of your own.

    Raises:
        InputError: There is none (lists all that there are), or it is not a method.
    """
    if name in METHODS:
        module, _, class_name = METHODS[name].partition(":")
        return cast("type[Method[Any]]", getattr(import_module(f"ipfl.methods.{module}"), class_name))
    if ":" not in name:
        raise unknown("method", name, [*METHODS, "module:Class"])
    from ipfl.system.plugins import load_callable

    return _check_method_class(load_callable(name, "method"), name)


def method_summary(name: str) -> str:
    """What a method does, in one line.

    Of the methods here it is read from the source: a list of methods need not wait for torch.
    """
    if name not in METHODS:
        return method_class(name).summary
    module, _, class_name = METHODS[name].partition(":")
    path = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for field in node.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and ast.unparse(field.target) == "summary"
                    and field.value
                ):
                    return str(ast.literal_eval(field.value))
    return method_class(name).summary


def method_reference(method: Method[Any]) -> str:
    """What `method_class` finds a method's class by: its name, or `module:Class`."""
    kind = type(method)
    own = f"{kind.__module__}:{kind.__qualname__}"
    return method.name if own == f"ipfl.methods.{METHODS.get(method.name)}" else own


def check_method(given: Any) -> Method[Any]:
    """What was given as a method.

    Raises:
        InputError: It is none; of a class, an object is wanted.
    """
    from ipfl.core import Method

    if isinstance(given, type):
        raise InputError(f"expected a method, not its class: {given.__name__}()")
    if not isinstance(given, Method):
        raise InputError(f"expected a method, such as ipfl.method('fedavg'), not {type(given).__name__}")
    return given


def _check_method_class(found: Any, name: str) -> type[Method[Any]]:
    """Refuses what is not a method, before it fails somewhere in a run."""
    from ipfl.core import Method

    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method {name!r} is not a class that extends ipfl.core.Method")
    options: Any = getattr(found, "__dataclass_params__", None)
    if not (hasattr(found, "__pydantic_fields__") and options and options.frozen):
        raise InputError(f"method {name!r} is not a frozen pydantic dataclass")
    missing = sorted(
        found.__abstractmethods__ | {key for key in ("name", "summary") if not hasattr(found, key)}
    )
    if missing:
        raise InputError(f"method {name!r} does not define {', '.join(missing)}")
    return found


def parts_of(kind: type[Any]) -> dict[str, type[Any]]:
    """The parts that a method is put together of, by name: hyper-parameters with hyper-parameters."""
    fields = dataclasses.fields(kind)
    return {one.name: type(one.default) for one in fields if dataclasses.is_dataclass(one.default)}


def method_fields(name: str) -> tuple[str, ...]:
    """Names of a method's hyper-parameters; those of a part with the part's name: `payment.price`."""
    return fields_of(method_class(name))


def fields_of(kind: type[Any]) -> tuple[str, ...]:
    """The same of a method's class."""
    parts, names = parts_of(kind), []
    for one in dataclasses.fields(kind):
        own = dataclasses.fields(parts[one.name]) if one.name in parts else ()
        names += [f"{one.name}.{inner.name}" for inner in own] or [one.name]
    return tuple(names)


def hyperparameter(method: Method[Any], key: str) -> Any:
    """The value of a hyper-parameter by its name in `method_fields`."""
    part, _, inner = key.rpartition(".")
    return getattr(getattr(method, part) if part else method, inner)


def flat_hyperparameters(settings: Mapping[str, Any], parts: Container[str]) -> dict[str, Any]:
    """Settings by their names in `method_fields`; `{"payment": {"price": 1}}` becomes `payment.price`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if key in parts and isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": one for inner, one in value.items()}
        else:
            flat[key] = value
    return flat


def method(name: str, /, **settings: Any) -> Method[Any]:
    """Builds a method by its name; the keywords are its hyper-parameters (`ipfl methods NAME` lists them).

    Those of a part are a mapping: `ipfl.method("ipfl-plus", payment={"subsidy": 1})`.
    """
    from ipfl.config.sections import check_setting

    kind, known, parts = method_class(name), method_fields(name), parts_of(method_class(name))
    own: dict[str, dict[str, Any]] = {}
    for key, value in flat_hyperparameters(settings, parts).items():
        if key not in known and not isinstance(value, parts.get(key, ())):
            raise unknown(f"hyper-parameter of {name}", key, known)
        part, _, inner = key.rpartition(".")
        own.setdefault(part, {})[inner] = value
    built_parts = {part: _build(parts[part], f"method.{part}", own[part]) for part in own if part}
    built: Method[Any] = _build(kind, "method", own.get("", {}) | built_parts)
    for key in known:
        value = hyperparameter(built, key)
        try:
            check_setting(value)
        except ValueError as error:
            raise InputError(f"method.{key} {error}, not {value!r:.50}") from error
    return built


def _build(kind: type[Any], section: str, settings: Mapping[str, Any]) -> Any:
    """An object of a pydantic dataclass; complaints on one line, with the dotted key."""
    from pydantic import ValidationError

    from ipfl.config.sections import one_line

    try:
        return kind(**settings)
    except ValidationError as error:
        raise InputError(one_line(error, None, section)) from error


def method_settings(method: Method[Any]) -> dict[str, Any]:
    """A method as a config has it: its name and all hyper-parameters, as JSON gives them back."""
    fields: dict[str, Any] = dataclasses.asdict(method) if dataclasses.is_dataclass(method) else {}
    as_json: dict[str, Any] = json.loads(json.dumps(fields, default=repr))
    return {"name": method_reference(method), **as_json}


def check_last_step(method: Method[Any], adapt: AdaptConfig) -> None:
    """Refuses the last step where there is no network to take it with.

    Raises:
        InputError: The method's clients predict with something else.
    """
    if adapt.is_on and not method.gives_one_network:
        raise InputError(
            f"[adapt] needs clients with one network each, and those of {method.name} predict with more than "
            "that: leave adapt out for it"
        )


def check_target(method: Method[Any], target: str) -> None:
    """Refuses a method that needs classes where something else is predicted."""
    if method.needs_classes and target != "classes":
        raise InputError(f"method {method.name!r} needs classes, but the task's target is {target!r}")


def check_parts(method: Method[Any], network: Network) -> None:
    """Refuses a method on a network that has not the parts that it needs."""
    for part in method.needs_parts:
        try:
            network.part(part)
        except InputError as error:
            raise InputError(f"method {method.name!r} needs another network: {error}") from error


def check_clusters(method: Method[Any], clients: int) -> None:
    """Refuses more clusters than there are clients to train them."""
    clusters = getattr(method, "clusters", None)
    if isinstance(clusters, int) and clusters > clients:
        raise InputError(f"method.clusters = {clusters}, but there are only {clients} clients to train with")
