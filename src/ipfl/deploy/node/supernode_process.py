"""A SuperNode that shows that it is at work: it touches a file when it has asked its server for messages.

    python -m ipfl.deploy.node.supernode_process HEARTBEAT_FILE ARGUMENT…

The arguments are those of `flower-supernode`. Whether its process runs says little: after an answer that it
did not expect, the loop that asks for messages ends or waits for good,
or its heartbeats to the server end, and the process stays. So `ipfl.deploy.node.supernode` looks at the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ipfl.engines.flower.flwr_internals import (
    ask_soon_after_messages,
    beat_while_at_work,
    run_supernode,
)


def main(heartbeat: Path, arguments: list[str]) -> None:
    """Runs a SuperNode in this process."""
    beat_while_at_work(heartbeat.touch)
    ask_soon_after_messages()
    run_supernode(arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
