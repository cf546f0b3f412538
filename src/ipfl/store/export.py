"""The ledger for other programs: CSV, and the text of the accounting program beancount.

In beancount every token that exists is an asset of somebody (a client, an escrow, a pool), and the issuer's
equity is minus the sum. A round is a day, round 0 being 1970-01-01 and the opening the day before.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import date, timedelta

from ipfl.errors import InputError
from ipfl.market.ledger import ISSUER, NO_CLUSTER, account_name
from ipfl.store.reading import Entry
from ipfl.store.runs import RunStore
from ipfl.store.schema import OPENING

COMMODITY = "TOKEN"
COLUMNS = ("id", "round", "sequence", "kind", "source", "target", "amount", "cluster", "client")


def csv_lines(store: RunStore) -> Iterator[str]:
    """A header, then a line per transfer; accounts by name, no cluster is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")

    def line(values: tuple[object, ...]) -> str:
        text.seek(0)
        text.truncate()
        writer.writerow(values)
        return text.getvalue()

    yield line(COLUMNS)
    with store.snapshot() as reader:
        for entry in reader.transfers():
            place = (f"{store.name}/{entry.round}/{entry.sequence}", entry.round, entry.sequence, entry.kind)
            cluster = "" if entry.cluster == NO_CLUSTER else entry.cluster
            yield line((*place, *entry.names, entry.amount, cluster, entry.client))


def beancount_lines(store: RunStore) -> Iterator[str]:
    """Accounts, then a transaction per transfer, then every balance as an assertion."""
    with store.snapshot() as reader:
        held = reader.balances()
        yield f'option "title" {_quoted(f"Tokens of run {store.name}")}\n'
        yield f'option "operating_currency" "{COMMODITY}"\n\n'
        yield f"{_day(OPENING)} commodity {COMMODITY}\n"
        for account in sorted(held):
            yield f"{_day(OPENING)} open {_account(account)} {COMMODITY}\n"
        last = OPENING
        for entry in reader.transfers():
            yield _transaction(entry)
            last = entry.round
        yield "\n"
        # An assertion holds at the beginning of its day.
        for account in sorted(held):
            yield f"{_day(last + 1)} balance {_account(account)}  {held[account]} {COMMODITY}\n"


def _transaction(entry: Entry) -> str:
    meta = {"round": entry.round, "sequence": entry.sequence, "kind": _quoted(entry.kind)}
    if entry.cluster != NO_CLUSTER:
        meta["cluster"] = entry.cluster
    lines = [f'{_day(entry.round)} * "client {entry.client}" {_quoted(entry.why)}']
    lines += [f"  {key}: {value}" for key, value in meta.items()]
    lines.append(f"  {_account(entry.source)}  {-entry.amount} {COMMODITY}")
    lines.append(f"  {_account(entry.target)}  {entry.amount} {COMMODITY}")
    return "\n" + "\n".join(lines) + "\n"


def _account(account: int) -> str:
    """`Assets:Client:3`, `Assets:Escrow:0`, `Assets:Pool:1`, `Equity:Issuer`."""
    if account == ISSUER:
        return "Equity:Issuer"
    kind, number = account_name(account).split()
    return f"Assets:{kind.capitalize()}:{number}"


def _day(round: int) -> date:
    try:
        return date(1970, 1, 1) + timedelta(days=round)
    except OverflowError as error:
        raise InputError(f"beancount's days end before round {round}") from error


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
