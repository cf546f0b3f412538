"""All studies by name, and what `ipfl theory` does: computes numbers, draws figures, writes both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ipfl.errors import InputError, unknown
from ipfl.figure_style import FIGURE_WIDTH, figure_settings, new_figure, save_figure
from ipfl.system.files import write_json
from ipfl.theory.convergence_studies import CONVERGENCE_STUDIES
from ipfl.theory.error_studies import ERROR_STUDIES
from ipfl.theory.remark_studies import REMARK_STUDIES
from ipfl.theory.study import Numbers

NUMBERS = "theory.json"
STUDIES = {**ERROR_STUDIES, **REMARK_STUDIES, **CONVERGENCE_STUDIES}
"""All studies by name, in the order of the paper."""


def write_studies(names: Sequence[str], folder: Path, seed: int, trials: int) -> list[Path]:
    """Computes and draws studies.

    Args:
        names: Which; see `STUDIES`.
        folder: Gets `theory.json` and a `NAME.png` for each.
        seed: Decides every number.
        trials: Of each simulation.

    Returns:
        The files.
    """
    for name in names:
        if name not in STUDIES:
            raise unknown("study", name, STUDIES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        numbers: Numbers = {"seed": seed, "trials": trials}
        files = []
        for name in names:
            numbers[name] = STUDIES[name].compute(seed, trials)
            files.append(draw_study(name, numbers[name], folder))
        write_json(folder / NUMBERS, numbers)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    return [*files, folder / NUMBERS]


def draw_study(name: str, numbers: Numbers, folder: Path) -> Path:
    """Draws one study from its numbers."""
    study, path = STUDIES[name], folder / f"{name}.png"
    with figure_settings():
        figure = new_figure(FIGURE_WIDTH, study.height)
        study.draw(figure, numbers)
    save_figure(figure, path)
    return path
