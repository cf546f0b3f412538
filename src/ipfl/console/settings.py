"""Which settings of a run differ from the defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from ipfl.config.run_config import Config
from ipfl.methods import METHODS, method_class, method_settings
from ipfl.results.overview import flat_settings


def non_default_settings(config: Any) -> dict[str, str]:
    """What a run's config has that is not the default, by dotted key; the method's own settings too.

    Args:
        config: As the run recorded it. Nothing that it names is imported: of methods that are not among those
            of the package, all settings are told.
    """
    if not isinstance(config, Mapping):
        return {}
    method = config.get("method")
    name = method.get("name") if isinstance(method, Mapping) else None
    usual = _run_defaults() | (_method_defaults(name) if name in METHODS else {})
    found = dict(flat_settings(config))
    return {
        key: json.dumps(value, ensure_ascii=False).strip('"')
        for key, value in found.items()
        if key == "method.name" or key not in usual or usual[key] != value
    }


@cache
def _run_defaults() -> dict[str, Any]:
    """All settings but those of methods."""
    plain = flat_settings(Config().model_dump(mode="json"))
    return {key: value for key, value in plain if not key.startswith("method.")}


@cache
def _method_defaults(name: str) -> dict[str, Any]:
    """A method's settings as runs record them, if nothing is chosen."""
    return dict(flat_settings({"method": method_settings(method_class(name)())}))
