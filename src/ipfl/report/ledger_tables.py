"""The ledger as tables for the terminal: who paid and earned what, and why; 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from ipfl.ledger.reader import AccountSummary, PostedTransfer
from ipfl.ledger.schema import OPENING
from ipfl.report.result_tables import break_names, format_count, plain_table, shorten

CLIENT_NAME_LENGTH = 14
"""Of a client in a row of transfers, which names up to three."""


def round_name(round: int) -> str:
    """A round's number, or `opening`."""
    return "opening" if round == OPENING else str(round)


def rolled_back_note(rounds: Sequence[int]) -> str:
    """A sentence about rounds that were rolled back."""
    named = ", ".join(map(round_name, rounds))
    subject = f"Round {named} was" if len(rounds) == 1 else f"Rounds {named} were"
    return f"{subject} rolled back: all bids went back, nobody was paid."


def accounts_table(
    accounts: Mapping[int, AccountSummary], title: str, names: Mapping[int, str] | None = None
) -> Table:
    """A row per client, by its name if it has one, and one with the sums."""
    columns = ("client", *AccountSummary._fields)
    table = plain_table(*columns, right=columns[1:] if names else columns, title=title)
    break_names(table)
    for client, account in accounts.items():
        table.add_row(escape((names or {}).get(client, str(client))), *map(format_count, account))
    if len(accounts) > 1:
        table.add_section()
        table.add_row("all", *(format_count(sum(column)) for column in zip(*accounts.values(), strict=True)))
    return table


def transfers_table(
    transfers: Iterable[PostedTransfer], title: str, names: Mapping[int, str] | None = None
) -> Table:
    """A row per transfer, in the order posted; clients by their names if they have any."""
    named = {client: escape(shorten(name, CLIENT_NAME_LENGTH)) for client, name in (names or {}).items()}
    numbers = ("round", "entry", "client", "tokens")
    table = plain_table("round", "entry", "client", "why", "from", "to", "tokens", right=numbers, title=title)
    for posted in transfers:
        client, transfer = posted.transfer.client, posted.transfer
        place = (round_name(posted.round), str(posted.sequence), named.get(client, str(client)))
        sides = zip((transfer.source, transfer.target), posted.account_names, strict=True)
        accounts = [named.get(account, name) for account, name in sides]
        table.add_row(*place, posted.reason, *accounts, format_count(transfer.amount))
    return table
