"""Anchors: heads of a run in a plain file elsewhere, a JSON line each, to be compared later.

The file is best on another machine or in the hands of another person: then not even the operator of the
server, who holds the signing key, can rewrite the rounds that it names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ipfl.errors import InputError
from ipfl.ledger.findings import Finding
from ipfl.ledger.reader import Reader
from ipfl.ledger.store import RunStore
from ipfl.system.files import refuse_special_file

MAX_LINE = 2**16
"""Bytes of a line of an anchor, at most; with a time stamp it has some thousand."""


def newest_head(store: RunStore, *, is_closed: bool = False) -> dict[str, Any]:
    """What an anchor keeps of the newest round, or of the closing."""
    with store.snapshot() as reader:
        last, closings = reader.last(), reader.closings()
        found = None if last is None else reader.signature(last.round)
    content: dict[str, Any] = {"run": store.name, "begun": store.begun}
    if is_closed and closings:
        closing = closings[-1]
        return content | {
            "round": closing.round,
            "closing": closing.hash,
            "public_key": closing.public_key,
            "signature": closing.signature,
        }
    content |= {"round": None if last is None else last.round, "hash": store.head()}
    return content | ({} if found is None else found._asdict())


def check_anchor(path: Path) -> None:
    """Accepts a file that heads can be added to; it may not be there yet.

    Raises:
        InputError: Why not.
    """
    refuse_special_file(path)
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise InputError(f"the anchor {path} cannot be written")


def append_head(path: Path, head: Mapping[str, Any]) -> None:
    """Adds a head to an anchor, unless it is the last one there already; on disk when this returns.

    A line without an end, of a process that died while it wrote, goes.

    Raises:
        OSError: The file cannot be written.
    """
    line = json.dumps(head).encode() + b"\n"
    with path.open("ab+") as file:
        start = max(0, file.seek(0, os.SEEK_END) - MAX_LINE)
        file.seek(start)
        tail = file.read()
        whole = tail[: tail.rfind(b"\n") + 1]
        if len(whole) < len(tail):
            file.truncate(start + len(whole))
        if whole.endswith(line):
            return
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read_heads(path: Path, run: str) -> list[dict[str, Any]]:
    """The heads of the runs of one name, in order."""
    heads = []
    refuse_special_file(path)
    try:
        whole, _, rest = path.read_text(encoding="utf-8").rpartition("\n")
        for number, text in enumerate([*whole.splitlines(), *([rest] if _is_json(rest) else [])], 1):
            head = json.loads(text)
            if not isinstance(head, dict) or not _is_head(head):
                raise ValueError(f"line {number} is not the head of a run")
            if head.get("run") == run:
                heads.append(head)
    except OSError as error:
        raise InputError(f"cannot read the anchor {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not an anchor: {error}") from error
    return heads


def _is_json(text: str) -> bool:
    """Whether the last line is whole though it has no end: otherwise a process died while it wrote it."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_head(head: Mapping[str, Any]) -> bool:
    """Whether a line has the types of a head; whoever has the file may have written anything."""
    texts = (head.get(name, "") for name in ("begun", "hash", "closing"))
    return type(head.get("round")) in (int, type(None)) and all(isinstance(one, str) for one in texts)


def anchor_findings(path: Path, store: RunStore, reader: Reader) -> Iterator[Finding]:
    """What an anchor says otherwise than the run."""
    heads = read_heads(path, store.name)
    if not heads:
        yield Finding(None, None, f"the anchor {path} does not know a run {store.name!r}")
        return
    begun = heads[-1].get("begun")
    if begun != store.begun:
        yield Finding(None, None, f"the anchor {path} knows another run {store.name!r}, with another header")
        return
    hashes = {posted.round: posted.hash for posted in reader.all_posted()}
    closings = {closing.hash for closing in reader.closings()}
    for head in heads:
        if head.get("begun") != begun or head.get("round") is None:
            continue
        round = head["round"]
        if round not in hashes:
            yield Finding(round, None, f"missing, although the anchor {path} knows it")
        elif "hash" in head and hashes[round] != head["hash"]:
            yield Finding(round, None, f"it has another hash than in the anchor {path}")
        elif "closing" in head and head["closing"] not in closings:
            yield Finding(None, None, f"the results are not those that the anchor {path} knows")
