"""All studies by name, and what `ipfl theory` does: computes numbers, draws figures, writes both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ipfl.errors import InputError, unknown
from ipfl.figure_style import FIGURE_WIDTH, figure_settings, new_figure, save_figure
from ipfl.system.files import write_json
from ipfl.theory.convergence_studies import (
    compute_clustering,
    compute_convergence,
    draw_clustering,
    draw_convergence,
)
from ipfl.theory.error_studies import compute_errors, compute_region, draw_errors, draw_region
from ipfl.theory.remark_studies import (
    compute_remark_1,
    compute_remark_2,
    compute_remark_3,
    draw_remark_1,
    draw_remark_2,
    draw_remark_3,
)
from ipfl.theory.study import Numbers, Study

NUMBERS = "theory.json"
SECTION = "section 3, Theoretical foundation"
STUDIES: dict[str, Study] = {
    "errors": Study(
        "errors of local, federated and clustered estimation", SECTION, compute_errors, draw_errors, 5.4
    ),
    "region": Study(
        "where a cluster is better than training alone", SECTION, compute_region, draw_region, 3.8
    ),
    "remark-1": Study(
        "small spread, many clients and noisy data make a cluster worth it",
        "section 3, R1",
        compute_remark_1,
        draw_remark_1,
    ),
    "remark-2": Study(
        "PMA rises when the within-cluster bias falls", "section 3, R2", compute_remark_2, draw_remark_2
    ),
    "remark-3": Study(
        "contributions lead clients to clusters like them", "section 3, R3", compute_remark_3, draw_remark_3
    ),
    "clustering": Study(
        "clients choose, centres move: the loss never rises, and it stops",
        "Proposition 1",
        compute_clustering,
        draw_clustering,
    ),
    "convergence": Study(
        "diminishing steps reach the minimum of a convex loss",
        "Theorems 3, 4 and 6",
        compute_convergence,
        draw_convergence,
        3.9,
    ),
}


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
