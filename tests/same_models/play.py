"""Plays short runs of every method on the default task, and prints a hash of the models of each as JSON.

Started as a process of its own , so that the kernels of the processor can be fixed before
torch and numpy are imported: with `KERNELS` in the environment the same bytes come out on every x86_64.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
}
"""Environment in which arithmetic does not depend on the processor."""
LAST_STEP = {"adapt": {"epochs": "auto", "label_prior": True}}
OTHERS = ["ditto", "fedala", "fedamp", "fedavg", "fedem", "fedfomo", "fedproto", "fedprox", "fedsoft"]
OTHERS += ["finetune", "ifca", "local", "perfedavg"]
PLAYS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    **{name: (name, {}, {}, 4) for name in OTHERS},
    "ipfl-plus": ("ipfl-plus", {}, {}, 12),
    "ipfl-plus K=4": ("ipfl-plus", {"clusters": 4}, {}, 12),
    "ipfl-plus attacked": (
        "ipfl-plus",
        {},
        {"adversary": {"share": 0.2, "kind": "sign_flip"}},
        12,
    ),
    "ipfl-plus K=4 attacked": (
        "ipfl-plus",
        {"clusters": 4},
        {"adversary": {"share": 0.2, "kind": "replay"}},
        12,
    ),
    "ipfl-plus with the last step": ("ipfl-plus", {}, LAST_STEP, 12),
    "ipfl-plus K=4 with the last step": ("ipfl-plus", {"clusters": 4}, LAST_STEP, 12),
    "ipfl-plus NI": ("ipfl-plus", {"incentive": False}, {}, 8),
    "ipfl-plus without tokens": ("ipfl-plus", {"clusters": 4, "payment": {"rule": "none"}}, {}, 12),
}
"""Name → method, its settings, sections of the config, rounds."""


def play(name: str) -> dict[str, str]:
    """Hashes of one run: of the server's models, of each client's model, and of all tokens that moved."""
    import ipfl

    method, settings, sections, rounds = PLAYS[name]
    config = ipfl.RunConfig.of({"rounds": rounds, "train": {"precision": "float32"}, **sections})
    task = ipfl.Task.load(dataset="digits", clients=20, samples=60)
    engine = ipfl.local_engine(workers=0)
    result = ipfl.run(task, ipfl.method(method, **settings), config, engine=engine, progress=False)
    server = hashlib.sha256()
    for key in sorted(result.models):
        server.update(key.encode() + result.models[key].tobytes())
    clients = hashlib.sha256(json.dumps(sorted(result.accuracies.items())).encode())
    for client in sorted(result.accuracies):
        for value in result.model(client).state_dict().values():
            clients.update(value.numpy().tobytes())
    moved = [tuple(row) for line in result.history for row in line.get("transfers", ())]
    return {
        "server": server.hexdigest()[:16],
        "clients": clients.hexdigest()[:16],
        "tokens": hashlib.sha256(json.dumps(moved).encode()).hexdigest()[:16] if moved else "",
    }


def main(names: Iterable[str]) -> None:
    """Prints the hashes of these runs, of all without a name."""
    print(json.dumps({name: play(name) for name in (list(names) or PLAYS)}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
