"""Every setting of a run, documented once; TOML in, validated by pydantic, one-line errors out.

The names are an interface that scripts rely on. An empty file is the default run.
"""

from __future__ import annotations

import dataclasses
import datetime
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ipfl import methods
from ipfl.errors import InputError, unknown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from ipfl.core import Method

DATASET = "digits"
"""Data set of the default task."""
MOST = 2**31 - 1
"""Largest whole number of a setting: what arrays and databases can count."""


class Section(BaseModel):
    """A part of the config: closed (no unknown keys), frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Builds the section; bad settings are an input error of one line."""
        if not isinstance(settings, Mapping):
            raise InputError(f"expected settings by name, not {settings!r}")
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise InputError(one_line(error, cls)) from error


class TaskConfig(Section):
    """What is learned by whom: data, hidden distributions, partition over clients, model."""

    dataset: str = Field(
        DATASET, description="see `ipfl datasets`; `npz` reads the file in `path`; or `module:callable`"
    )
    path: Path | None = Field(None, description='a user\'s .npz file, for dataset = "npz"')
    data_dir: Path | None = Field(
        None, description="folder with .npz files of the data sets (else $IPFL_DATA, else the download cache)"
    )
    distributions: str = Field(
        "permuted",
        description="hidden distributions: rotated[:d] | permuted[:d] | halves | groups[:d] | natural | iid",
    )
    partition: str = Field(
        "10:90",
        description="how each client mixes them: a:b | linear | random | classes:c | dirichlet:α | natural",
    )
    synthetic: bool = Field(False, description="test mix swapped against the training mix")
    clients: int = Field(20, ge=1, le=MOST, description="number of clients N, the unseen ones included")
    samples: int | None = Field(
        60,
        ge=1,
        le=MOST,
        description="training samples (train + probe) per client; "
        "omitted with another data set than the default one: all there are",
    )
    sizes: Literal["equal", "unequal"] = Field(
        "equal", description="same number of samples for all, or log-normal sizes around it"
    )
    size_spread: float = Field(0.5, gt=0, description="sigma of the log-normal sizes")
    probe: float = Field(0.2, gt=0, lt=1, description="share of the samples held back to score models")
    test_samples: int = Field(100, ge=1, le=MOST, description="test samples per client, at most")
    server_samples: int = Field(
        0, ge=0, le=MOST, description="samples per distribution in the server's own holdout"
    )
    unseen: int = Field(0, ge=0, le=MOST, description="of the clients, how many are held back from training")
    drift_round: int | None = Field(
        None, ge=1, le=MOST, description="round at which some clients change distribution"
    )
    drift_share: float = Field(0.2, gt=0, le=1, description="share of the clients that change at drift_round")
    model: str = Field(
        "cnn",
        description="cnn | mlp | softmax | `module:callable` (input_shape, classes) → nn.Module",
    )

    @model_validator(mode="before")
    @classmethod
    def _samples_of_other_data(cls, given: Any) -> Any:
        """The default number of samples fits the default data set; of any other, all are used."""
        if isinstance(given, dict) and given.get("dataset", DATASET) != DATASET:
            return {"samples": None, **given}
        return given


class TrainConfig(Section):
    """Local training, the same for all methods."""

    lr: float = Field(0.1, gt=0, description="learning rate of plain SGD")
    batch_size: int = Field(32, ge=1, le=MOST, description="samples per step")
    epochs: int = Field(2, ge=1, le=MOST, description="passes over the client's train part per training")
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD momentum")
    weight_decay: float = Field(0.0, ge=0, description="L2 pull towards zero")
    per_round: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="client trainings per round, the budget all methods share; omitted: half of the clients",
    )
    min_clients: int = Field(
        1, ge=1, description="clients whose updates a round needs; with fewer it is void and nothing is paid"
    )


class EvaluateConfig(Section):
    """When and on whom models are evaluated on test data."""

    every: Annotated[int, Field(ge=1, le=MOST)] | Literal["auto"] = Field(
        "auto",
        description="every so many rounds, and always the last; "
        "auto: as often as a quarter of the training's cost allows",
    )
    clients: int | None = Field(
        None, ge=1, le=MOST, description="evaluate on so many clients, a seeded choice; omitted: all"
    )
    holdout: int = Field(
        500, ge=1, le=MOST, description="test samples per distribution for the accuracy of server models"
    )


class ClientsConfig(Section):
    """How clients behave."""

    leave: bool = Field(
        False,
        description="clients with PMA ≤ 0 after the grace period leave for good (needs a reference)",
    )
    grace: int = Field(10, ge=0, le=MOST, description="rounds before a client may leave")
    deadline: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="seconds for an answer, by the clock: whoever takes longer is left out",
    )


class AggregateConfig(Section):
    """How the server makes one model of the clients' replies."""

    rule: Literal["mean", "trimmed_mean", "geometric_median", "multi_krum"] = Field(
        "mean", description="mean by sample counts, or a rule that bears some hostile replies"
    )
    hostile: float = Field(
        0.2, ge=0, lt=0.5, description="share of the replies that trimmed_mean and multi_krum reckon with"
    )
    clip: Annotated[float, Field(gt=0)] | Literal["median"] | None = Field(
        None, description="longest update ‖ω_i − ω‖, or the median of a round's; longer ones are shortened"
    )


class AdversaryConfig(Section):
    """Clients that mean ill, to see what they get out of it and what they cost the others."""

    share: float = Field(0.0, ge=0, lt=1, description="share of the clients that attack, a seeded choice")
    kind: Literal[
        "free_rider", "noisy_free_rider", "label_flip", "sign_flip", "scaled", "liar", "colluder", "sybil"
    ] = Field(
        "free_rider",
        description="free_rider | noisy_free_rider | label_flip | sign_flip | scaled | liar | colluder | "
        "sybil; see docs/adversaries.md",
    )
    strength: Annotated[float, Field(gt=0)] | None = Field(
        None, description="how hard: a factor whose meaning and default depend on the kind"
    )


Share = Annotated[float, Field(ge=0, le=1)]
Rounds = tuple[Annotated[int, Field(ge=0)], ...]


class FaultsConfig(Section):
    """Faults to inject, for tests and drills; none by default. See docs/faults.md."""

    dropout: Share = Field(0.0, description="share of the clients that drop out, drawn anew in every round")
    dropout_when: tuple[Literal["before", "during", "after"], ...] = Field(
        ("before", "during", "after"), min_length=1, description="in relation to training, drawn for each"
    )
    slow: Share = Field(0.0, description="share whose answers of the round come after the deadline")
    crash: Share = Field(0.0, description="share whose worker process is killed while they train")
    broken: Share = Field(0.0, description="share of the replies that are broken")
    broken_kinds: tuple[Literal["nan", "infinite", "shape", "enormous", "duplicate"], ...] = Field(
        ("nan", "infinite", "shape", "enormous", "duplicate"), min_length=1, description="how, drawn for each"
    )
    full_disk: Rounds = Field((), description="rounds whose commit finds the disk full")
    store_away: Rounds = Field((), description="rounds whose commit finds the run store gone")
    outage: float = Field(2.0, gt=0, description="seconds that full_disk and store_away last")


class MethodConfig(Section):
    """Which method runs, and its hyper-parameters (`ipfl methods NAME` lists them)."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(methods.DEFAULT, description="see `ipfl methods`")
    clusters: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2, description="number of clusters K, or auto; ignored by methods without clusters"
    )


class Config(Section):
    """A whole run: what is learned, by which method, for how long."""

    seed: int = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description="decides everything random: partition, initial parameters, selections, shuffles",
    )
    rounds: int = Field(30, ge=1, le=MOST, description="number of rounds")
    task: TaskConfig = Field(default_factory=TaskConfig)
    method: MethodConfig = Field(default_factory=MethodConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    clients: ClientsConfig = Field(default_factory=ClientsConfig)
    aggregate: AggregateConfig = Field(default_factory=AggregateConfig)
    adversary: AdversaryConfig = Field(default_factory=AdversaryConfig)
    faults: FaultsConfig = Field(default_factory=FaultsConfig)

    @classmethod
    def load(
        cls,
        path: Path | str | None = None,
        sets: Sequence[str] = (),
        overrides: Mapping[str, Any] | None = None,
    ) -> Config:
        """Reads a TOML file, or starts from the defaults, and changes single fields.

        Args:
            path: The file; None for the default run.
            sets: `section.field=value` each, the value in TOML or plain text.
            overrides: The same as dotted key → value; the last word.

        Raises:
            InputError: What is wrong, on one line, with the dotted key.
        """
        tree = {} if path is None else _read(Path(path))
        for key, value in [*map(_assignment, sets), *(overrides or {}).items()]:
            _put(tree, key, value)
        return cls.of(tree)

    def build_method(self, name: str | None = None) -> Method[Any]:
        """The method of this config, or another with the same settings; each key must be one of its own."""
        name = name or self.method.name
        return self.build_methods([name])[name]

    def build_methods(self, labels: Iterable[str]) -> dict[str, Method[Any]]:
        """Several methods: a key goes to each that has it, and must belong to at least one.

        A label is a method's name, with settings of its own if wanted: `NAME:key=value:key=value`.
        """
        settings = self.method.model_extra or {}
        parsed = {label: _variant(label) for label in labels}
        fields = {label: method_fields(name) for label, (name, _) in parsed.items()}
        known = {field for own in fields.values() for field in own}
        for key in settings:
            if key not in known:
                raise unknown(
                    "key", f"method.{key}", [f"method.{field}" for field in known | {"name", "clusters"}]
                )
        shared = {"clusters": self.method.clusters, **settings}
        built = {}
        for label, (name, own) in parsed.items():
            fitting = {key: value for key, value in shared.items() if key in fields[label]}
            built[label] = method(name, **(fitting | own))
        return built

    def record(self, built: Iterable[Method[Any]]) -> dict[str, Any]:
        """The effective config for `summary.json`, with all hyper-parameters of the methods."""
        content = self.model_dump(mode="json")
        every = [{"name": one.name, **dataclasses.asdict(one)} for one in built]  # type: ignore[call-overload]
        return {**content, "method": every[0] if len(every) == 1 else every}


def method_fields(name: str) -> tuple[str, ...]:
    """Names of a method's hyper-parameters."""
    return tuple(field.name for field in dataclasses.fields(methods.method_class(name)))  # type: ignore[arg-type]


def method(name: str, /, **settings: Any) -> Method[Any]:
    """Builds a method by its name; the keywords are its hyper-parameters (`ipfl methods NAME` lists them)."""
    kind = methods.method_class(name)
    known = method_fields(name)
    for key in settings:
        if key not in known:
            raise unknown(f"hyper-parameter of {name}", key, known)
    try:
        return kind(**settings)
    except ValidationError as error:
        raise InputError(one_line(error, None, "method")) from error


def check_clusters(method: Method[Any], clients: int) -> None:
    """Refuses more clusters than there are clients to train them."""
    clusters = getattr(method, "clusters", None)
    if isinstance(clusters, int) and clusters > clients:
        raise InputError(f"method.clusters = {clusters}, but there are only {clients} clients to train with")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"config {path} is not a text file in UTF-8") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, or too many brackets
        raise InputError(f"config {path} is not valid TOML: {error}") from error


def _assignment(text: str) -> tuple[str, Any]:
    """Splits `task.partition=30:70`; a value that is not TOML is taken as text."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value or not all(key.split(".")):
        raise InputError(f"setting {text!r}: expected section.field=value, such as task.clients=40")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # also a number of thousands of digits, or too many brackets
        return key, value
    # TOML 1.1 reads 10:30 as a time of day; here it is a partition.
    return key, value if isinstance(parsed, datetime.time | datetime.date) else parsed


def _variant(label: str) -> tuple[str, dict[str, Any]]:
    """Splits `NAME:key=value:key=value` into the name and its own settings."""
    name, *own = label.split(":")
    return name, dict(_assignment(setting) for setting in own)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for depth, section in enumerate(sections, 1):
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InputError(f"cannot set {key}: {'.'.join(sections[:depth])} is not a section")
    tree[last] = value


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
    *above, _ = key.split(".")
    if "extra_forbidden" in kinds:
        for part in above:
            section = _inner(section, part)
        return str(
            unknown(
                "key", key, [".".join([*above, name]) for name in section.model_fields] if section else []
            )
        )
    if "model_type" in kinds:
        return f"{key} should be a section, such as [{key}], not {details[0]['input']!r}"
    messages = dict.fromkeys(detail["msg"].removeprefix("Input ") for detail in details)
    given = details[0]["input"]
    return f"{key} {' or '.join(messages)}, not {'a section' if isinstance(given, dict) else repr(given)}"


def _inner(section: type[Section] | None, field: str) -> type[Section] | None:
    """The section that a field of a section holds, if it holds one."""
    info = section.model_fields.get(field) if section else None
    kind = info.annotation if info else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None
