"""The runs that an experiment needs, each known by what defines it, so that tables can share runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ipfl.config.run_config import ADAPTED
from ipfl.config.whole_config import Config, last_steps
from ipfl.core import Method
from ipfl.reproduce.experiments import Experiment, Scale, Settings, read_common
from ipfl.study.study_run import StudyRun

KEY_LENGTH = 16
"""Hex digits of a run's key."""


Columns = Mapping[str, Mapping[tuple[str, int], StudyRun]]
"""The runs of an experiment by column, then by label and seed."""


def plan_experiment(
    experiment: Experiment,
    scale: Scale,
    seeds: Iterable[int],
    tuned: Mapping[str, Settings] | None = None,
) -> Columns:
    """All runs of an experiment.

    Args:
        experiment: Which.
        scale: How large.
        seeds: The seeds of every run.
        tuned: Settings that tuning has found, by label.
    """
    seeds = list(seeds)
    columns: dict[str, dict[tuple[str, int], StudyRun]] = {}
    for name, variant in experiment.columns.items():
        base = {**base_settings(experiment, scale), **variant}
        runs = columns.setdefault(name, {})
        first = [experiment.reference] if experiment.reference else []
        for label in dict.fromkeys([*first, *experiment.labels]):
            own = {**read_common().settings.get(label, {}), **settings_of(label, tuned or {})}
            for seed in seeds:
                reference = runs.get((experiment.reference, seed))
                runs[label, seed] = plan_run(label, seed, base, own, reference, experiment.labels)
    return columns


def base_settings(experiment: Experiment, scale: Scale) -> Settings:
    """Settings of all runs of an experiment, without those of its columns and methods."""
    return {**read_common().tasks[experiment.task].settings(scale), **experiment.settings(scale)}


def plan_run(
    label: str,
    seed: int,
    base: Settings,
    own: Settings,
    reference: StudyRun | None = None,
    rows: Sequence[str] = (),
) -> StudyRun:
    """One run.

    Args:
        label: Of its method.
        seed: Its seed.
        base: Settings by dotted key.
        own: Settings of this method alone; keys of no section of the config are hyper-parameters.
        reference: What clients may compare themselves with before they leave.
        rows: Labels of all methods beside it, which say whose the section `[adapt]` is.
    """
    of_config = {key: value for key, value in own.items() if key.partition(".")[0] in Config.model_fields}
    of_method = {key: value for key, value in own.items() if key not in of_config}
    overrides = {**base, **of_config, "seed": seed}
    if reference is None:  # nobody can leave the reference for being worse than the reference
        overrides.pop("clients.leave", None)
    config = Config.load(None, (), overrides)
    full = ":".join([label, *(f"{key}={_label_text(value)}" for key, value in of_method.items())])
    method = config.build_methods([full])[full]
    config = config.model_copy(update={"adapt": last_steps(config.adapt, [full, *rows])[full]})
    reference = reference if config.clients.leave else None
    title = f"{label}, {config.task.partition}, seed {seed}"
    return StudyRun(run_key(config, method, reference), label, method, config, title, reference, own)


def _label_text(value: Any) -> str:
    """A value as it is written in the label of a method."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def run_key(config: Config, method: Method[Any], reference: StudyRun | None) -> str:
    """The hash of all that defines a run but the code: equal runs of the same code have equal keys."""
    content = config.record([method])
    content["reference"] = None if reference is None else reference.key
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:KEY_LENGTH]


def settings_of(label: str, tuned: Mapping[str, Settings]) -> Settings:
    """The tuned settings of a method; a variant without a grid of its own has those of its method.

    Settings that the variant itself names are not changed.
    """
    parts = label.split(":")
    for count in range(len(parts), 0, -1):
        variant = ":".join(parts[:count])
        found = tuned.get(variant, tuned.get(variant.removesuffix(ADAPTED)))
        if found is not None:
            named = {part.partition("=")[0] for part in parts[count:]}
            return {key: value for key, value in found.items() if key not in named}
    return {}
