"""The table of `ipfl run --profile`."""

from __future__ import annotations

from rich import box
from rich.table import Table

from ipfl.core.profile import Profile


def profile_table(profile: Profile) -> Table:
    """Seconds and bytes of every phase, and their share of the whole."""
    table = Table(title="Where the time went", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("phase")
    for column in ("times", "seconds", "share", "bytes down", "bytes up"):
        table.add_column(column, justify="right")
    for phase in profile.phases():
        share = phase.seconds / profile.seconds if profile.seconds else 0.0
        cells = f"{phase.times:,}", f"{phase.seconds:.3f}", f"{100 * share:.1f} %"
        table.add_row(phase.name, *cells, f"{phase.down:,}", f"{phase.up:,}")
    table.add_section()
    table.add_row("whole run", "", f"{profile.seconds:.3f}", "", "", "")
    return table
