"""Comparisons: runs side by side, one process each, beside one run after the other on all cores.

All methods × 3 seeds on the digits, 10 rounds. Beside it a control: what the machine gave at that time to two
plain processes, which share nothing.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import statistics
import time
from typing import Any

from ipfl.config.whole_config import Config
from ipfl.engines.local_engine import count_cores
from ipfl.methods import METHODS
from ipfl.study.comparison import compare
from ipfl.study.run_pool import SameProcess, local_pool
from round import count


def seconds_of(config: Config, names: list[str], seeds: int, *, is_spread: bool) -> float:
    """Of one comparison."""
    pool = local_pool() if is_spread else lambda runs, first, tasks: SameProcess(None, tasks)
    begun = time.perf_counter()
    compare(config, names, seeds, make_pool=pool)
    return time.perf_counter() - begun


def control(number: int) -> float:
    """One after the other over side by side: what so many plain processes gain at this moment."""
    cores = count_cores()
    with mp.get_context("fork").Pool(cores) as pool:
        begun = time.perf_counter()
        pool.map(count, [number] * cores, chunksize=1)
        middle = time.perf_counter()
        for _ in range(cores):
            pool.apply(count, (number,))
        return (time.perf_counter() - middle) / (middle - begun)


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """One row: the gain of each turn, and that of the control in the same turn."""
    names, seeds = (["fedavg"], 1) if quick else (list(METHODS), 3)
    config = Config.of({"rounds": 1 if quick else 10, "task": {"clients": 6 if quick else 20}})
    gains, controls = [], []
    for _ in range(1 if quick else 3):
        spread = seconds_of(config, names, seeds, is_spread=True)
        gains.append(seconds_of(config, names, seeds, is_spread=False) / spread)
        controls.append(control(10**5 if quick else 3 * 10**7))
    return [
        {
            "cores": len(os.sched_getaffinity(0)),
            "runs": len(names) * seeds,
            "gain": statistics.median(gains),
            "least": min(gains),
            "most": max(gains),
            "control": statistics.median(controls),
            "control least": min(controls),
            "control most": max(controls),
        }
    ]
