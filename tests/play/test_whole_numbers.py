"""Every whole number of a config, a method and a deployment has a largest value, and more is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from ipfl.config.sections import MAX_INT32, Section
from ipfl.config.whole_config import Config
from ipfl.deploy.registry import NodeAccount
from ipfl.deploy.settings_files import NodeSettings, ServerConfig, ServerSettings
from ipfl.errors import InputError
from ipfl.methods import METHODS, method, method_class

LARGER = {"seed": 2**63 - 1, "node": 2**64 - 1}
"""Largest values beyond that of most settings."""


def whole_numbers(schema: dict[str, Any], parts: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[Any]:
    """Path of each whole number of a JSON schema, its largest value, and whether there is a list of them."""
    if "$ref" in schema:
        yield from whole_numbers(parts[schema["$ref"].rsplit("/", 1)[-1]], parts, path)
    if schema.get("type") == "integer":
        yield path, schema.get("maximum", MAX_INT32), False
    for branch in schema.get("anyOf", ()):
        yield from whole_numbers(branch, parts, path)
    if isinstance(schema.get("items"), dict):
        yield from ((path, most, True) for path, most, _ in whole_numbers(schema["items"], parts, path))
    for name, one in schema.get("properties", {}).items():
        yield from whole_numbers(one, parts, (*path, name))


def cases() -> Iterator[Any]:
    sections: list[type[Section]] = [Config, ServerSettings, NodeSettings, ServerConfig, NodeAccount]
    for section in sections:
        schema = section.model_json_schema()
        for path, most, is_list in whole_numbers(schema, schema.get("$defs", {})):
            yield pytest.param(section, path, most, is_list, id=f"{section.__name__}.{'.'.join(path)}")
    for name in METHODS:
        schema = TypeAdapter(method_class(name)).json_schema()
        for path, most, is_list in whole_numbers(schema, schema.get("$defs", {})):
            yield pytest.param(name, path, most, is_list, id=f"{name}.{'.'.join(path)}")


def build(kind: type[Section] | str, settings: dict[str, Any]) -> object:
    """The section, or the method of this name."""
    return method(kind, **settings) if isinstance(kind, str) else kind.of(settings)


@pytest.mark.parametrize(("kind", "path", "most", "is_list"), [*cases()])
def test_too_large(kind, path, most, is_list):
    assert most <= LARGER.get(path[-1], MAX_INT32)
    for value in (most + 1, 2**64, 10**30):
        given = [value] if is_list else value
        for part in reversed(path):
            given = {part: given}
        with pytest.raises(InputError) as refused:
            build(kind, given)
        said = str(refused.value)
        assert f"{path[-1]} should be less than or equal to {most}" in said
        assert "\n" not in said


def test_the_walk_finds_what_is_known():
    found = {case.id: case.values[2] for case in cases()}
    assert len(found) > 50
    assert found["Config.seed"] == 2**63 - 1
    assert found["Config.train.min_clients"] == MAX_INT32
    assert found["Config.task.unseen"] == MAX_INT32
    assert found["ServerSettings.port"] == 65535
    assert found["ipfl-plus.payment.price"] == MAX_INT32
