"""How quick the console is on large runs: a million transfers, and 500 rounds of 1,000 clients.

    python benchmarks/console.py [--rounds 500] [--clients 1000]

Writes a run into a folder of its own: every client bids for a cluster in every round, and one in four trains,
so that 500 rounds of 1,000 clients make more than a million transfers. Then opens the largest pages in
Chromium, each with an empty cache, until all charts are drawn; and asks for every page and the JSON behind it
over HTTP. All on this machine; prints the first of five and their median.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from playwright.sync_api import Browser, sync_playwright

from ipfl.console.app import make_app, open_console
from ipfl.console.guard import RequestLimits
from ipfl.core import Seat
from ipfl.ledger.store import RunStore
from ipfl.market.bank import opening_transfers
from ipfl.market.market_rows import Bid, Contribution, Transfer

CLUSTERS = 4
PRICE = 100


def market_line(number: int, clients: int, rng: np.random.Generator) -> dict[str, object]:
    """A round in which everyone bids for one cluster and every fourth trains and shares the pool."""
    wanted = rng.integers(0, CLUSTERS, clients)
    trains = rng.random(clients) < 0.25
    trains[:CLUSTERS], wanted[:CLUSTERS] = True, range(CLUSTERS)  # every pool has somebody to empty it
    transfers = [Transfer("bid", i, -2 - 2 * k, PRICE, k, i) for i, k in enumerate(wanted.tolist())]
    transfers += [Transfer("fee", -2 - 2 * k, -3 - 2 * k, PRICE, k, i) for i, k in enumerate(wanted.tolist())]
    for k in range(CLUSTERS):
        providers = np.flatnonzero(trains & (wanted == k)).tolist()
        pool = PRICE * int((wanted == k).sum())
        share, rest = divmod(pool, len(providers))
        transfers += [
            Transfer("reward", -3 - 2 * k, i, share + (rest if n == 0 else 0), k, i)
            for n, i in enumerate(providers)
        ]
    seated = np.flatnonzero(trains).tolist()
    accuracies = rng.uniform(0.5, 0.9, clients).round(4).tolist()
    return {
        "round": number,
        "clients": clients,
        "bids": tuple(Bid(i, k, 0, 0.5, True) for i, k in enumerate(wanted.tolist())),
        "seats": tuple(Seat(i, int(wanted[i]), "performance", True) for i in seated),
        "contributions": tuple(Contribution(i, int(wanted[i]), float(rng.random()), 1) for i in seated),
        "transfers": tuple(transfers),
        "economy": {"gini": 0.1, "broke": 0, "empty_seats": 0},
        "evaluation": {
            "personalized_accuracy": {"mean": float(np.mean(accuracies)), "std": float(np.std(accuracies))},
            "cluster_accuracy": rng.uniform(0.2, 0.9, (2, CLUSTERS)).tolist(),
            "clients": list(range(clients)),
            "personalized": accuracies,
            "global": [],
            "goal": accuracies,
            "unseen_clients": [],
            "unseen": [],
        },
        "bytes_down": 10_000_000,
        "bytes_up": 1_000_000,
        "events": (),
    }


def write_run(folder: Path, rounds: int, clients: int) -> int:
    """A run of that size; returns the number of its transfers."""
    opening = PRICE * rounds
    header = {
        "method": "ipfl-plus",
        "config": {"task": {"dataset": "made up", "distributions": "none", "partition": "none"}},
        "seed": 0,
        "rounds": rounds,
        "clients": list(range(clients)),
        "rules": {"price": PRICE, "opening": opening, "clusters": CLUSTERS},
    }
    rng, total = np.random.default_rng(0), clients
    store = RunStore.create(folder, folder.name, header)
    store.commit_opening(opening_transfers(range(clients), opening))
    for number in range(rounds):
        line = market_line(number, clients, rng)
        total += len(line["transfers"])  # type: ignore[arg-type]
        store.commit_round(number, line, None)
    return total


def addresses(rounds: int) -> Iterator[tuple[str, str]]:
    """What is asked for: name and address."""
    run = "/runs/large"
    yield "Runs: page", "/"
    yield "Run: page", run
    yield "Run: accuracy over rounds", f"/api{run}/series"
    yield "Run: heat map", f"/api{run}/heat-map"
    yield "Run: flow of clients", f"/api{run}/flow"
    yield "Run: a round's auction", f"/api{run}/rounds/{rounds // 2}"
    yield "Client: page", f"{run}/clients/7"
    yield "Client: charts", f"/api{run}/clients/7/series"
    yield "Ledger: page", f"{run}/ledger"
    yield "Ledger: from the middle", f"{run}/ledger?offset={rounds * 1000}"
    yield "Ledger: one client", f"{run}/ledger?client=7"
    yield "Ledger: one round", f"{run}/ledger?round={rounds - 1}"


VIEWS = {"Run": "/runs/large", "Client": "/runs/large/clients/7", "Ledger": "/runs/large/ledger"}
DRAWN = "() => document.querySelectorAll('[data-chart]:not([data-drawn])').length === 0"


def five_times(measure: Callable[[], float]) -> tuple[float, float]:
    """Milliseconds of the first, and the median."""
    times = [measure() for _ in range(5)]
    return times[0], statistics.median(times)


def view(browser: Browser, address: str) -> float:
    """Milliseconds from the wish to see a page until it is whole, with an empty cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(address)
    page.wait_for_function(DRAWN)
    milliseconds: float = page.evaluate("performance.now()")  # since the browser began to load the page
    context.close()
    return milliseconds


def ask(web: httpx.Client, path: str) -> float:
    """Milliseconds of one request."""
    begun = time.perf_counter()
    web.get(path).raise_for_status()
    return 1000 * (time.perf_counter() - begun)


def measure_views(address: str) -> None:
    """Prints how long pages take in a browser, that of the run first: nobody has asked for anything yet."""
    print("| in Chromium | first, ms | median of five, ms |\n|---|---|---|")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, path in VIEWS.items():
            first, median = five_times(partial(view, browser, address + path))
            print(f"| {name} | {first:.0f} | {median:.0f} |")
        browser.close()


def measure_requests(address: str, rounds: int) -> None:
    """Prints how long the answers take."""
    print("\n| over HTTP | first, ms | median of five, ms | kB |\n|---|---|---|---|")
    with httpx.Client(base_url=address, timeout=120) as web:
        for name, path in addresses(rounds):
            first, median = five_times(partial(ask, web, path))
            print(f"| {name} | {first:.0f} | {median:.0f} | {len(web.get(path).content) / 1000:.0f} |")


def main() -> None:
    """Writes the run, serves it and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        begun = time.perf_counter()
        total = write_run(Path(place) / "large", options.rounds, options.clients)
        print(f"{options.rounds} rounds, {options.clients} clients, {total} transfers", end=", ")
        print(f"written in {time.perf_counter() - begun:.0f} s\n")
        limits = RequestLimits(per_second=1e6, burst=1e6)
        app = make_app(open_console(Path(place), "127.0.0.1", auth=False, limits=limits))
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        measure_views(f"http://127.0.0.1:{port}")
        measure_requests(f"http://127.0.0.1:{port}", options.rounds)
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
