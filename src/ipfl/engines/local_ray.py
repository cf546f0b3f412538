"""How a Ray is started that lives and ends with this process, and that nobody else can reach."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import gettempdir
from typing import Any

RAY_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray prints a warning at every start
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # processes that would wait, beside those that do the work
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "2",  # how long Ray's processes run on after ours was killed
}


@contextmanager
def changed_environment(**changes: str) -> Iterator[None]:
    """Sets environment variables for Ray and Flower; also undoes what these change themselves."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def short_temp_folder() -> str | None:
    """A folder whose name is short enough for Ray's sockets (107 bytes, of which Ray takes 64)."""
    return "/tmp" if len(gettempdir()) > 24 and os.path.isdir("/tmp") else None


def ray_arguments(workers: int, folder: str) -> dict[str, Any]:
    """What `ray.init` is called with.

    Args:
        workers: Processes for tasks.
        folder: Where Ray keeps its files.
    """
    return {
        "address": "local",
        "num_cpus": workers,
        "include_dashboard": False,
        "_temp_dir": folder,
        "_node_ip_address": "127.0.0.1",
        "logging_level": logging.ERROR,
        "log_to_driver": False,
    }
