"""The effective config as TOML that can be read back, with the description of every field as a comment."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from ipfl.config.run_config import RunConfig
from ipfl.config.sections import Section
from ipfl.config.whole_config import Config
from ipfl.methods import hyperparameter, method_class, method_fields, method_reference, parts_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ipfl.core import Method

LINE_WIDTH = 96


@dataclass(frozen=True)
class Hyperparameter:
    """One hyper-parameter of a method, as `ipfl methods NAME` lists it."""

    name: str
    default: Any
    description: str
    """With the choices, if there are few."""


def hyperparameters(name: str) -> list[Hyperparameter]:
    """The hyper-parameters of a method, in the order of its fields; those of a part as `part.name`."""
    method, found = method_class(name), []
    parts = parts_of(method)
    for key in method_fields(name):
        part, _, inner = key.rpartition(".")
        kind = parts[part] if part else method
        fields: Mapping[str, FieldInfo] = getattr(kind, "__pydantic_fields__")  # noqa: B009 (untyped)
        info = fields[inner]
        found.append(Hyperparameter(key, info.get_default(call_default_factory=True), _described(info)))
    return found


def _described(info: FieldInfo) -> str:
    text = info.description or ""
    if get_origin(info.annotation) is not Literal:
        return text
    return f"{text} ({' | '.join(map(str, get_args(info.annotation)))})".strip()


def toml_value(value: Any) -> str:
    """A value in TOML; JSON's strings, numbers and lists are TOML too."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML alone forbids a bare DEL


def commented_toml(config: Config) -> str:
    """The whole config as commented TOML, with the hyper-parameters of its method."""
    content = config.model_dump(mode="json")
    lines = [*_comment(f"{config.__doc__}"), ""]
    sections: list[tuple[str, Section]] = []
    # What is learned, and by which method, comes before how it is run.
    for name in sorted(Config.model_fields, key=lambda name: name in RunConfig.model_fields):
        info = Config.model_fields[name]
        value = getattr(config, name)
        if isinstance(value, Section):
            sections.append((name, value))
        else:
            lines += _setting(name, content[name], info.description)
    for name, section in sections:
        lines += ["", *_comment(f"{section.__doc__}"), f"[{name}]"]
        lines.append(commented_settings(section).removesuffix("\n"))
        if name == "method":
            lines += _method_settings(section, config.build_method())
    return "\n".join(lines) + "\n"


def commented_settings(section: Section, unset: str | None = None) -> str:
    """The settings of a section as commented TOML.

    Args:
        section: The settings.
        unset: What stands for those that are not set; None: they are comments.
    """
    lines, content = list[str](), section.model_dump(mode="json")
    for field, info in type(section).model_fields.items():
        lines += _setting(field, content[field], info.description, unset)
    return "\n".join(lines) + "\n"


def _method_settings(section: Section, method: Method[Any]) -> Iterator[str]:
    for field in hyperparameters(method_reference(method)):
        if field.name not in type(section).model_fields:
            yield from _setting(field.name, hyperparameter(method, field.name), field.description)


def _setting(name: str, value: Any, description: str | None, unset: str | None = None) -> Iterator[str]:
    yield from _comment(description or "")
    if value is None:
        yield f"# {name} =" if unset is None else f"{name} = {unset}"
    else:
        yield f"{name} = {toml_value(value)}"


def _comment(text: str) -> Iterator[str]:
    for line in textwrap.wrap(text, LINE_WIDTH):
        yield f"# {line}"
