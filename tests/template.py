"""The method of CONTRIBUTING.md, as it is written there."""

from __future__ import annotations

import re
from pathlib import Path

CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"
TEMPLATE = "interpolate:Interpolate"
"""What a config names it by."""


def template_blocks() -> list[str]:
    """Python blocks of the section "Add a method in one file": the method, and its line for the registry."""
    _, section = CONTRIBUTING.read_text().split("## Add a method in one file\n")
    return re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)


def write_template(folder: Path) -> Path:
    """Writes the method into a file of its own, which a config can name by `TEMPLATE`."""
    method, *_ = template_blocks()
    path = folder / f"{TEMPLATE.partition(':')[0]}.py"
    path.write_text(method)
    return path
