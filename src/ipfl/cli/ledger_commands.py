"""`ipfl ledger`: show, verify, prove and export the tokens of a run. Only typer is imported at the top."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipfl.errors import InputError

if TYPE_CHECKING:
    from ipfl.ledger.store import RunStore

app = typer.Typer(
    no_args_is_help=True, help="Show, verify, prove and export who paid and earned which tokens in a run."
)

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run; or its run.db alone, without other files.")
]


PublicKey = Annotated[
    str | None,
    typer.Option(
        "--public-key",
        metavar="KEY",
        help="Who must have signed: 64 hex digits or a PEM file; default: signing.key beside the run.",
    ),
]


StatementKey = Annotated[
    Path | None,
    typer.Option("--signing-key", metavar="FILE", help="Signs it; default: signing.key beside the run."),
]


def _open(run: Path) -> RunStore:
    from ipfl.ledger.store import RunStore

    return RunStore.open(run)


@app.command("show", epilog="For example:\n\nipfl ledger show runs/mine --client 3")
def show_accounts(
    run: RunArgument,
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

    from ipfl.core.client_names import find_client
    from ipfl.ledger.schema import OPENING
    from ipfl.report.ledger_tables import accounts_table, rolled_back_note, round_name, transfers_table

    store = _open(run)
    with store.snapshot() as reader:
        names = store.client_names
        client = None if client_text is None else find_client(client_text, names)
        if client is not None and client not in reader.clients():
            raise InputError(f"run {store.name!r} has no client {client_text}")
        if round is not None and round not in reader.round_numbers():
            raise InputError(f"run {store.name!r} has no round {round}")
        if not store.header.get("rules"):
            typer.echo(
                f"run {store.name!r} has no ledger to show: {store.header.get('method')} moves no tokens"
            )
            return
        chosen = "" if client is None else f", client {names.get(client, client)}"
        if round is not None:
            chosen += f", {'' if round == OPENING else 'round '}{round_name(round)}"
        console = Console(highlight=False, markup=False)
        if chosen:
            console.print(transfers_table(reader.transfers(client, round), f"Transfers{chosen}", names))
        accounts = reader.accounts(None if client is None else [client], round)
        console.print(accounts_table(accounts, f"Tokens of {store.name}{chosen}", names))
        if numbers := [number for number in reader.rolled_back() if round in (None, number)]:
            console.print(rolled_back_note(numbers))


@app.command(epilog="For example:\n\nipfl ledger verify runs/mine --expect 5c1f…")
def verify(
    run: RunArgument,
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="HASH", help="A hash noted earlier, of any round.")
    ] = None,
    public_key: PublicKey = None,
) -> None:
    """Check a run: sums, replay of every auction and reward, hash chain, signatures, every file.

    Exit code 1 and the first wrong entry if something is wrong. Otherwise the newest hash is printed: keep it
    elsewhere. Given to --expect later, it shows even what the owner of the signing key changed.
    """
    from ipfl.keep.run_audit import Audit

    if expect is not None and not re.fullmatch("[0-9a-f]{64}", expect):
        raise InputError(f"--expect needs a hash, which has 64 hex digits, not {expect!r:.80}")
    store, folder = _open(run), run if run.is_dir() else None
    audit = Audit(store, folder, _expected_key(public_key, folder), expect)
    finding = audit.finding()
    if finding is not None:
        typer.echo(f"error: run {store.name}: {finding}", err=True)
        raise typer.Exit(1)
    for line in audit.report():
        typer.echo(line)


def _expected_key(given: str | None, folder: Path | None) -> str | None:
    """Who must have signed: the key that is named, or the one beside the run's folder."""
    from ipfl.keep.signing_keys import key_beside
    from ipfl.ledger.signing import read_public_key

    if given is not None:
        return read_public_key(given)
    return read_public_key(str(beside)) if folder and (beside := key_beside(folder)).is_file() else None


@app.command(epilog="For example:\n\nipfl ledger prove runs/mine --client 3 > client-3.jsonl")
def prove(
    run: RunArgument,
    client: Annotated[
        str, typer.Option("--client", metavar="I", help="Whose account: the client's id, or its name.")
    ],
    round: Annotated[
        int | None, typer.Option("--round", metavar="R", help="After this round; default: the last one.")
    ] = None,
    signing_key: StatementKey = None,
) -> None:
    """Write a client's statement of account: one signed line with its balance, its transfers and the hash.

    `ipfl ledger check` checks it anywhere. It says nothing of the accounts of others.
    """
    import json

    from ipfl.core.client_names import find_client
    from ipfl.keep.signing_keys import statement_key

    store = _open(run)
    store.key = statement_key(run, signing_key)
    who = find_client(client, store.client_names)
    typer.echo(json.dumps(store.statement(who, round).to_json()))


@app.command(epilog="For example:\n\nipfl ledger check client-3.jsonl --against runs/mine")
def check(
    statements: Annotated[
        Path, typer.Argument(metavar="FILE", help="From `ipfl ledger prove`, or from a node's memory.")
    ],
    public_key: PublicKey = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="RUN", help="Folder of the run that must say the same."),
    ] = None,
) -> None:
    """Check what a client kept of its account, line by line; and whether the ledger agrees.

    Exit code 1 if it is not valid, or if the ledger of --against says otherwise.
    """
    from ipfl.ledger.signing import read_public_key
    from ipfl.ledger.statements import parse_statements
    from ipfl.system.files import read_text

    key = None if public_key is None else read_public_key(public_key)
    try:
        text = read_text(statements)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {statements}: {getattr(error, 'strerror', 'it is not text')}"
        ) from error
    try:
        told = parse_statements(text, key)
    except InputError as error:
        typer.echo(f"error: {statements}: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(str(told[-1]))
    if against is not None:
        reason = next(filter(None, map(_open(against).denial, told)), None)
        if reason is not None:
            typer.echo(f"error: the ledger of {against} denies this: {reason}", err=True)
            raise typer.Exit(1)
        typer.echo(f"the ledger of {against} says the same")


@app.command("export", epilog="For example:\n\nipfl ledger export runs/mine > tokens.csv")
def export_ledger(run: RunArgument) -> None:
    """Write all transfers to standard output, as CSV."""
    from ipfl.ledger.export import csv_lines

    sys.stdout.writelines(csv_lines(_open(run)))
