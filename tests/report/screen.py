"""A terminal to print on, and what was printed there."""

import io

from rich.console import Console


def terminal(*, live=False, width=80):
    return Console(file=io.StringIO(), force_terminal=live, width=width, color_system=None)


def printed(console):
    return console.file.getvalue()
