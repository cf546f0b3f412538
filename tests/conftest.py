"""For all tests: however they were started, Ctrl-C must reach the processes that they start."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and so would be every process below them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
