"""All benchmarks in one run: measures, writes results.json, and makes README.md of it.

    make bench                          # everything, some 20 minutes on an idle machine
    make bench PARTS="bank clients"     # some parts; the others keep their figures
    python benchmarks/bench.py --page   # only the page, from the figures that are there

Parts run one after the other, in the order of the document. After each of them the files are written, so that
what was measured stays when a later part fails.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bank
import clients
import comparisons
import frameworks
import methods
import report
import round as rounds
from measuring import HERE, load, machine

PARTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "steps": rounds.measure_steps,
    "cores": rounds.measure_cores,
    "frameworks": frameworks.measure,
    "clients": clients.measure,
    "comparisons": comparisons.measure,
    "methods": methods.measure,
    "bank": bank.measure,
}
"""What can be measured, each by a function that returns rows."""
RESULTS, PAGE = "results.json", "README.md"


def run_part(name: str, *, quick: bool) -> dict[str, Any]:
    """Measures one part."""
    before, begun = load(), time.perf_counter()
    rows = PARTS[name](quick=quick)
    seconds = time.perf_counter() - begun
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds, 1),
        "load": [before, load()],
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the parts named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named"
    )
    parser.add_argument("--page", action="store_true", help="measure nothing: only make the page")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the benchmarks themselves")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results.json and README.md")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    file: Path = options.out / RESULTS
    results = json.loads(file.read_text()) if file.is_file() else {"parts": {}}
    for name in [] if options.page else options.parts or PARTS:
        print(f"{name} …", flush=True)
        results |= {"machine": machine()}
        results["parts"][name] = run_part(name, quick=options.quick)
        file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: {results['parts'][name]['seconds']:.0f} s", flush=True)
    (options.out / PAGE).write_text(report.page(results))


if __name__ == "__main__":
    main()
