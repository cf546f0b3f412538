"""`ipfl ledger`: show, verify and export the tokens of a run. Only typer is imported at the top."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from ipfl.errors import InputError, near_hint

if TYPE_CHECKING:
    from ipfl.ledger.store import RunStore

app = typer.Typer(
    no_args_is_help=True, help="Show, verify and export who paid and earned which tokens in a run."
)

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Folder of a run, or the URL of a database (then with --run).")
]
Name = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="Which run, if the database holds several.")
]


def _open(run: str, name: str | None) -> RunStore:
    from ipfl.ledger.store import RunStore

    return RunStore.open(run, name)


def _client_id(text: str, names: Mapping[int, str]) -> int:
    """The id of a client that is given by its id or its name; a name comes first."""
    by_name = {name: client for client, name in names.items()}
    if text in by_name:
        return by_name[text]
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise InputError(f"there is no client {text!r}{near_hint(text, by_name)}")
    return int(text)


@app.command(epilog="For example:\n\nipfl ledger show runs/mine --client 3")
def show(
    run: Run,
    name: Name = None,
    client_text: Annotated[
        str | None, typer.Option("--client", metavar="I", help="Only this client: its id, or its name.")
    ] = None,
    round: Annotated[
        int | None, typer.Option("--round", metavar="R", help="Only this round; -1 is the opening.")
    ] = None,
) -> None:
    """Show who paid and earned what.

    Without options: the accounts of all clients. With --client or --round: also every transfer, and why.
    """
    from rich.console import Console

    from ipfl.ledger.schema import OPENING
    from ipfl.report.ledger import accounts_table, rolled_back_note, round_name, transfers_table

    with _open(run, name) as store, store.snapshot() as reader:
        names = store.client_names
        client = None if client_text is None else _client_id(client_text, names)
        if client is not None and client not in reader.clients():
            raise InputError(f"run {store.name!r} has no client {client_text}")
        if round is not None and round not in reader.round_numbers():
            raise InputError(f"run {store.name!r} has no round {round}")
        chosen = "" if client is None else f", client {names.get(client, client)}"
        if round is not None:
            chosen += f", {'' if round == OPENING else 'round '}{round_name(round)}"
        console = Console(highlight=False, markup=False)
        if chosen:
            console.print(transfers_table(reader.transfers(client, round), f"Transfers{chosen}", names))
        accounts = reader.accounts(client, round)
        console.print(accounts_table(accounts, f"Tokens of {store.name}{chosen}", names))
        if numbers := [number for number in reader.rolled_back() if round in (None, number)]:
            console.print(rolled_back_note(numbers))


@app.command(epilog="For example:\n\nipfl ledger verify runs/mine")
def verify(run: Run, name: Name = None) -> None:
    """Check a run's history: sums, replay of every auction and reward, hash chain.

    Exit code 1 and the first wrong entry if something is wrong. Otherwise the newest hash is printed, which
    covers the whole history: note it, and compare it later to find any change.
    """
    from ipfl.runs.audit import verify_run

    with _open(run, name) as store:
        # Before the check: a running run may post more rounds during it.
        last, head = store.last_round(), store.head()
        finding = verify_run(store)
        if finding is not None:
            typer.echo(f"error: run {store.name}: {finding}", err=True)
            raise typer.Exit(1)
        rounds = 0 if last is None else last + 1
        typer.echo(f"{store.name}: {rounds} round{'' if rounds == 1 else 's'} verified, hash {head}")


@app.command(epilog="For example:\n\nipfl ledger export runs/mine --csv > tokens.csv")
def export(
    run: Run,
    name: Name = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="A line per transfer; the only format.")] = True,
) -> None:
    """Write all transfers to standard output, as CSV."""
    from ipfl.ledger.export import csv_lines

    with _open(run, name) as store:
        for line in csv_lines(store):
            sys.stdout.write(line)
