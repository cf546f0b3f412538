"""Commands that list methods, data sets and partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from ipfl.cli.options import DataDir, complete_method, stdout_console


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=complete_method)] = None,
) -> None:
    """List the methods; with NAME, the hyper-parameters of that one."""
    from ipfl.report.result_tables import method_table, methods_table

    console = stdout_console()
    if name is None:
        console.print(methods_table())
        return
    from ipfl.methods import method_class
    from ipfl.report.config_text import hyperparameters

    console.print(f"{name}: {method_class(name).summary}", markup=False)
    fields = hyperparameters(name)
    if fields:
        console.print(method_table(fields))
        advice = f"Set one with: ipfl run --method {name} --set method.{fields[0].name}=…"
    else:
        advice = "It has no hyper-parameters of its own; those of training are in [train]."
    console.print(advice, markup=False)


def datasets(data_dir: DataDir = None) -> None:
    """List the data sets."""
    from ipfl.report.result_tables import datasets_table

    stdout_console().print(datasets_table(data_dir))


def partitions() -> None:
    """List hidden distributions and partitions over clients."""
    from ipfl.data import DISTRIBUTIONS, PARTITIONS
    from ipfl.report.result_tables import meanings_table

    console = stdout_console()
    console.print(meanings_table("task.distributions", DISTRIBUTIONS))
    console.print(meanings_table("task.partition", PARTITIONS))
