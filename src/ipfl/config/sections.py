"""What every section of a config is built on: closed, frozen, with errors of one line.

Sections: `[task]` in `task_section`, `[train]`, `[adapt]` and `[privacy]` in `train_section`, `[method]` in
`whole_config`, the rest in `run_config`. `[aggregate]` is here: every method reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from annotated_types import Le
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from ipfl.errors import InputError, unknown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_INT32 = 2**31 - 1
"""Largest whole number of a setting whose field says no other: what arrays and databases can count."""
MAX_REAL = 3.4e38
"""Largest number of a setting: beyond it, single precision overflows."""


def check_setting(value: Any, most: int = MAX_INT32) -> None:
    """Accepts a setting whose numbers can be computed with; refuses nan, infinity, and what overflows.

    Args:
        value: The setting, or several of them.
        most: Its largest whole number, with either sign.

    Raises:
        ValueError: What it should be.
    """
    if isinstance(value, float):
        if not -MAX_REAL <= value <= MAX_REAL:  # no comparison is true of nan
            raise ValueError("should be a finite number up to 3.4e38")
    elif isinstance(value, int):
        if not -most <= value <= most:
            raise ValueError(f"should be less than or equal to {most}")
    elif isinstance(value, list | tuple):
        for one in value:
            check_setting(one, most)


if TYPE_CHECKING:
    _SectionMeta = type
else:

    class _SectionMeta(type(BaseModel)):
        """Lets `Section(…)` raise an input error of one line, as `Section.of` does.

        Not in `__init__`, which pydantic would call for sections inside sections, too: their keys would be
        lost.
        """

        def __call__(cls, *args, **settings):
            try:
                return super().__call__(*args, **settings)
            except ValidationError as error:
                raise InputError(one_line(error, cls)) from error


class Section(BaseModel, metaclass=_SectionMeta):
    """A part of the config: closed (no unknown keys), frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Every number of every section; a field may say another limit of its own."""
        about = cls.model_fields[info.field_name or ""].metadata
        own = (limit.le for limit in about if isinstance(limit, Le) and isinstance(limit.le, int))
        check_setting(value, next(own, MAX_INT32))
        return value

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Builds the section; bad settings are an input error of one line."""
        if not isinstance(settings, Mapping):
            raise InputError(f"expected settings by name, not {settings!r}")
        return cls(**settings)


class AggregateConfig(Section):
    """How the server makes one model of the clients' replies."""

    rule: Literal["mean", "trimmed_mean", "geometric_median", "multi_krum"] = Field(
        "mean", description="mean by sample counts, or a rule that tolerates some attackers"
    )
    attacker_share: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="share of attackers that trimmed_mean, multi_krum and robust markets expect",
    )
    clip: Annotated[float, Field(gt=0)] | Literal["median"] | None = Field(
        None, description="longest update ‖ω_i − ω‖, or the median of a round's; longer ones are shortened"
    )
    max_weight: float | None = Field(
        None,
        ge=1,
        description="a reply counts for at most so many times the median number of samples of its phase; "
        "omitted: 10 on deployed nodes, no limit in simulations",
    )
    min_providers: int | None = Field(
        None,
        ge=1,
        description="a model moves only if so many clients delivered an update to it; "
        "omitted: 2 on deployed nodes, 1 in simulations",
    )

    def on_nodes(self) -> AggregateConfig:
        """The same with the defaults of deployed nodes, whose operators need not trust each other."""
        omitted = {"max_weight": 10.0, "min_providers": 2}
        chosen = {key: value for key in omitted if (value := getattr(self, key)) is not None}
        return self.model_copy(update=omitted | chosen)

    @property
    def fewest(self) -> int:
        """The number of updates without which a model stays as it is."""
        return self.min_providers or 1


def one_line(error: ValidationError, section: type[Section] | None, within: str = "") -> str:
    """All that pydantic found, on one line, each with its dotted key."""
    details = error.errors()
    found: dict[str, list[ErrorDetails]] = {}
    for detail in details:
        found.setdefault(".".join(_path(detail, section, within)), []).append(detail)
    return "; ".join(_complaint(key, about, section) for key, about in found.items())


def _path(detail: ErrorDetails, section: type[Section] | None, within: str) -> list[str]:
    """The key's parts. What follows a field in pydantic's path is a branch of a union: left out."""
    path = [within] if within else []
    for part in map(str, detail["loc"]):
        path.append(part)
        section = _inner(section, part)
        if section is None:
            break
    return path


def _complaint(key: str, details: Sequence[ErrorDetails], section: type[Section] | None) -> str:
    """What is wrong with one key; a union complains once for each of its branches."""
    kinds = {detail["type"] for detail in details}
    *above, name = key.split(".")
    meant = [place for place in keys_named(name, section) if place != key]
    hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    if "extra_forbidden" in kinds:
        if hint:
            return f"unknown key {key!r}{hint}"
        for part in above:
            section = _inner(section, part)
        return str(
            unknown(
                "key", key, [".".join([*above, name]) for name in section.model_fields] if section else []
            )
        )
    if "model_type" in kinds:
        return f"{key} should be a section, such as [{key}], not {details[0]['input']!r}{hint}"
    given = details[0]["input"]
    messages = dict.fromkeys(_plain_message(detail) for detail in details)
    if kinds == {"value_error"} and isinstance(given, dict):  # about several keys, which it names
        return "; ".join(messages)
    return f"{key} {' or '.join(messages)}, not {'a section' if isinstance(given, dict) else repr(given)}"


def _plain_message(detail: ErrorDetails) -> str:
    """What pydantic says, in words of a config file."""
    if detail["type"] == "string_pattern_mismatch" and (names := _alternatives(detail["ctx"]["pattern"])):
        return f"should be {', '.join(names[:-1])} or {names[-1]}"
    if detail["type"] == "tuple_type":
        return 'should be a list, such as ["a", "b"]'
    return detail["msg"].removeprefix("Input ").removeprefix("Value error, ")


def _alternatives(pattern: str) -> list[str]:
    """What a pattern such as `^(sgd|adam|[^:]+:[^:]+)$` lets through; what is no word is a user's code.

    Empty for patterns that are no plain list.
    """
    inside = pattern.removeprefix("^(").removesuffix(")$")
    if len(inside) != len(pattern) - 4 or re.search(r"\([^)]*\|", inside):
        return []
    words = (re.match(r"\w*", one) for one in inside.split("|"))
    return [word[0] or "module:callable" for word in words if word]


def keys_named(name: str, section: type[Section] | None) -> list[str]:
    """Dotted keys of all fields that have this name: what was meant if the section is missing or another."""
    fields = section.model_fields if section else {}
    inner = {field: kind for field in fields if (kind := _inner(section, field))}
    here = [name] if name in fields and name not in inner else []
    return here + [f"{field}.{name}" for field, kind in inner.items() if name in kind.model_fields]


def _inner(section: type[Section] | None, field: str) -> type[Section] | None:
    """The section that a field of a section holds, if it holds one."""
    info = section.model_fields.get(field) if section else None
    kind = info.annotation if info else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None
