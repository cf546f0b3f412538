"""One client: its balance, every movement of its tokens in words, its wishes, its accuracy, what it gains."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ipfl.console.answers import (
    ClientDetail,
    ClientPage,
    ClientRow,
    Movement,
    MovementPage,
    Series,
    Wish,
)
from ipfl.console.auction import RankedContribution, places
from ipfl.console.figures import (
    MAX_EVALUATIONS,
    client_accuracies,
    evaluated_rounds,
    reference_run,
    thin,
)
from ipfl.console.found_runs import FoundRun, FoundRuns
from ipfl.errors import InputError
from ipfl.keep.file_names import SUMMARY_FILE
from ipfl.keep.run_folder import is_on_nodes
from ipfl.keep.signing_keys import statement_key
from ipfl.ledger.reader import Reader
from ipfl.ledger.store import RunStore
from ipfl.report.ledger_tables import round_name


def list_clients(reader: Reader, names: Mapping[int, str], offset: int, limit: int) -> ClientPage:
    """A part of the clients in ascending id, with what each paid and earned."""
    members = reader.clients()
    accounts = account_rows(reader, names, members[offset : offset + limit])
    return ClientPage(total=len(members), offset=offset, clients=accounts)


def account_rows(reader: Reader, names: Mapping[int, str], shown: Sequence[int]) -> list[ClientRow]:
    """Tokens that some clients were issued, paid and earned; sums made by the database."""
    return [
        ClientRow(client=who, name=names.get(who), **account._asdict())
        for who, account in reader.accounts(shown).items()
    ]


def client_detail(runs: FoundRuns, found: FoundRun, client: int) -> ClientDetail | None:
    """One client; None if the run has no such client."""
    with runs.read(found) as (store, reader):
        if client not in reader.clients():
            return None
        names = store.client_names
        account = account_rows(reader, names, [client])[0] if store.header.get("rules") else None
        wishes = _newest_wishes(reader, client)
        numbers = evaluated_rounds(reader)
        accuracy = client_accuracies(reader, numbers[-1]).get(client) if numbers else None
        thresholds = _thresholds(runs, found, client, numbers[-1:])
        statement = _statement_note(store, reader)
    _, threshold = next(iter(thresholds.values()), (None, None))
    if reference_run(runs, found) == found:
        verdict, gains = "This run is the reference that others are compared with.", None
    else:
        verdict, gains = _verdict(accuracy, threshold)
    return ClientDetail(
        run=found.key,
        client=client,
        name=names.get(client),
        account=account,
        wishes=wishes,
        accuracy=accuracy,
        threshold=threshold,
        verdict=verdict,
        gains=gains,
        statement=statement,
        has_model=has_models(found),
    )


def _statement_note(store: RunStore, reader: Reader) -> str | None:
    """Of which round a client's statement of account would be, and who signed it; None: there is none."""
    last = reader.last()
    if not store.header.get("rules") or last is None:
        return None
    signer = "not signed: the run has no key" if last.public_key is None else f"signed by {last.public_key}"
    return f"After round {round_name(last.round)}, {signer}."


def statement_json(found: FoundRun, client: int) -> dict[str, Any]:
    """A client's statement of account as JSON, as `ipfl ledger prove` writes it.

    Raises:
        InputError: The run has no tokens or no such client.
    """
    key = statement_key(found.folder)
    return RunStore.open(found.folder, key=key).statement(client).to_json()


def has_models(found: FoundRun) -> bool:
    """True if clients' models can be had: the run has ended, and not on nodes that keep them."""
    return (found.folder / SUMMARY_FILE).is_file() and not is_on_nodes(found.folder)


def write_model(found: FoundRun, client: int, path: Path) -> None:
    """Writes a client's model to a file, as `ipfl export` does.

    Raises:
        InputError: There is no such model here, or only code of others could make it.
    """
    from ipfl.results.finished import load
    from ipfl.results.model_files import export_model

    if not has_models(found):
        raise InputError("models can be downloaded once a run in a folder has ended")
    export_model(load(found.folder).model(client), path)


def _newest_wishes(reader: Reader, client: int) -> list[Wish]:
    # From the newest round back: a maximum would be looked for in all rounds.
    newest = reader.column("SELECT round FROM bids WHERE client = ? ORDER BY round DESC LIMIT 1", client)
    if not newest:
        return []
    rows = reader.connection.execute(
        "SELECT cluster, rank, score FROM bids WHERE client = ? AND round = ? ORDER BY rank",
        [client, *newest],
    )
    return [Wish(cluster=cluster, rank=rank + 1, score=score) for cluster, rank, score in rows]


def _thresholds(
    runs: FoundRuns, found: FoundRun, client: int, numbers: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """Accuracy that the reference gives this client, at its newest evaluation up to each of these rounds.

    The two runs may be evaluated in different rounds.

    Returns:
        Round → the reference's round, and the accuracy there; not for rounds before its first evaluation.
    """
    reference = reference_run(runs, found)
    if reference is None or reference == found or not numbers:
        return {}
    with runs.read(reference) as (_, reader):
        known = evaluated_rounds(reader)
        newest = {number: known[place - 1] for number in numbers if (place := bisect_right(known, number))}
        values = _accuracies_of_client(reader, client, sorted({*newest.values()}))
    return {number: (then, values[then]) for number, then in newest.items() if then in values}


def _verdict(accuracy: float | None, threshold: float | None) -> tuple[str, bool | None]:
    if accuracy is None:
        return "Not evaluated yet.", None
    if threshold is None:
        return (
            "There is no reference run to compare with; ipfl compare plays one with the run.",
            None,
        )
    gain = 100 * (accuracy - threshold)
    if gain > 0:
        return f"Stays: its model is {gain:.1f} points better than what the reference gives it.", True
    worse = "no better than" if abs(gain) < 0.05 else f"{-gain:.1f} points worse than"
    return f"Has reason to leave: its model is {worse} what the reference gives it.", False


def client_series(runs: FoundRuns, found: FoundRun, client: int) -> Series:
    """Balance, first wish, contribution, accuracy and threshold of a client over rounds.

    `threshold_round` is the round of the reference that a threshold comes from.
    """
    with runs.read(found) as (_, reader):
        values: dict[str, dict[int, float]] = {"balance": _balances(reader, client)}
        values["preferred"] = _by_round(reader, "bids", "CASE rank WHEN 0 THEN cluster END", client)
        values["psi"] = _by_round(reader, "contributions", "psi", client)
        shown = thin(evaluated_rounds(reader), MAX_EVALUATIONS)
        values["accuracy"] = _accuracies_of_client(reader, client, shown)
    thresholds = _thresholds(runs, found, client, shown)
    values["threshold"] = {number: accuracy for number, (_, accuracy) in thresholds.items()}
    values["threshold_round"] = {number: float(then) for number, (then, _) in thresholds.items()}
    kept = sorted({round for column in values.values() for round in column})
    columns: dict[str, list[float | None]] = {
        name: [column.get(round) for round in kept] for name, column in values.items() if column
    }
    return Series(round=kept, columns=columns)


def _accuracies_of_client(reader: Reader, client: int, numbers: Sequence[int]) -> dict[int, float]:
    found = {number: client_accuracies(reader, number).get(client) for number in numbers}
    return {number: value for number, value in found.items() if value is not None}


def _by_round(reader: Reader, table: str, value: str, client: int) -> dict[int, float]:
    """The largest value of a client's rows in a table, by round."""
    # Round by round, as the tables are sorted, instead of through all rows of all clients.
    rows = reader.connection.execute(
        f"SELECT round, max({value}) FROM {table} WHERE round IN (SELECT round FROM rounds) AND client = ? "
        f"AND {value} IS NOT NULL GROUP BY round",
        [client],
    )
    return dict(rows.fetchall())


def _changes(reader: Reader, client: int) -> dict[int, int]:
    """The change of a client's balance in each round. All transfers of its account name the client."""
    rows = reader.connection.execute(
        "SELECT round, sum(amount * ((target = client) - (source = client))) FROM transfers "
        "WHERE client = ? AND client IN (source, target) GROUP BY round",
        [client],
    )
    return dict(sorted(rows))


def _balances(reader: Reader, client: int) -> dict[int, float]:
    balance, found = 0, {}
    for number, change in _changes(reader, client).items():
        balance += change
        found[number] = float(balance)
    return found


def movements(reader: Reader, client: int, before: int | None, limit: int) -> MovementPage:
    """A client's movements in words, the newest first, from the rounds before the given one."""
    changes = _changes(reader, client)
    balances = {number: int(balance) for number, balance in _balances(reader, client).items()}
    known = list(balances)
    every = {*changes, *_by_round(reader, "seats", "cluster", client)}
    older = sorted(number for number in every if before is None or number < before)
    shown = older[-limit:][::-1]
    told = _tell(reader, client, shown)
    found = []
    for number in shown:
        place = bisect_right(known, number)
        held = balances[known[place - 1]] if place else 0
        found.append(Movement(round=number, change=changes.get(number, 0), balance=held, words=told[number]))
    return MovementPage(movements=found, before=shown[-1] if len(older) > limit else None)


def _tell(reader: Reader, client: int, numbers: Sequence[int]) -> dict[int, str]:
    """Round → what the client did in it, in words."""
    sums: dict[int, dict[tuple[str, int], int]] = defaultdict(lambda: defaultdict(int))
    chosen = f"round IN ({', '.join('?' * len(numbers))}) AND client = ?"
    moved = reader.connection.execute(
        f"SELECT round, CASE source WHEN client THEN 'paid' ELSE kind END, cluster, amount FROM transfers "
        f"WHERE {chosen} AND client IN (source, target) ORDER BY round, sequence",
        [*numbers, client],
    )
    for number, what, cluster, amount in moved:
        sums[number][what, cluster] += amount
    seats = f"SELECT round, cluster, delivered FROM seats WHERE {chosen}"
    seated = {
        (number, cluster): bool(delivered)
        for number, cluster, delivered in reader.connection.execute(seats, [*numbers, client])
    }
    ranked = places(reader, numbers, [client])
    return {
        number: describe_round(
            sums[number],
            {cluster: came for (round, cluster), came in seated.items() if round == number},
            {cluster: place for (round, _, cluster), place in ranked.items() if round == number},
        )
        for number in numbers
    }


def describe_round(
    sums: Mapping[tuple[str, int], int], seated: Mapping[int, bool], ranked: Mapping[int, RankedContribution]
) -> str:
    """One round of a client in words, such as `paid 100 for cluster 2, ranked 3rd of 8, earned 140`.

    Args:
        sums: (kind of the transfer, or `paid`; cluster) → tokens.
        seated: Cluster in which it was asked to train → whether it delivered.
        ranked: Cluster → rank of its contribution.
    """
    sentences = []
    if amount := sums.get(("open", -1)):
        sentences.append(f"started with {amount} tokens")
    for cluster in sorted({cluster for _, cluster in sums} | {*seated}):
        told = _describe_cluster(cluster, sums, seated.get(cluster), ranked.get(cluster))
        if told:
            sentences.append(", ".join(told))
    return "; ".join(sentences)


def _describe_cluster(
    cluster: int,
    sums: Mapping[tuple[str, int], int],
    delivered: bool | None,
    place: RankedContribution | None,
) -> list[str]:
    told, where = [], "" if cluster < 0 else f" in cluster {cluster}"
    paid = sums.get(("paid", cluster), 0)
    if paid:
        told.append(f"paid {paid} for cluster {cluster}")
        where = ""
    if delivered is False:
        told.append(f"was asked to train{where} and delivered nothing")
    elif delivered and place is None:
        told.append(f"trained{where}")
    elif delivered and place is not None:
        told.append(f"ranked {ordinal(place.place)} of {place.of}{where}")
    if amount := sums.get(("refund", cluster)):
        told.append(f"got {amount} back")
    if amount := sums.get(("reimbursement", cluster)):
        told.append(f"got {amount} of the pool back")
    if amount := sums.get(("reward", cluster)):
        told.append(f"earned {amount}")
    elif delivered and paid:
        told.append("earned nothing")
    return told


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
