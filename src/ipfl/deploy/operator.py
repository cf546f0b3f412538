"""The operator's side of a running server: starts a run, follows it and stops it; registers keys.

The SuperLink's socket can be opened by its user alone: who may do this is a matter of the file's mode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import httpx

from ipfl.deploy.credentials import fingerprint
from ipfl.deploy.federation_folder import ServerFolder
from ipfl.deploy.registry import Registry
from ipfl.deploy.run_log import LineKind, read_line
from ipfl.engines.flower.flwr_internals import COMPLETED_STATUS, SuperLinkControl, bundle_app
from ipfl.errors import InputError

MAX_FAILURE_LINES = 40
"""How many lines of Flower's log are shown when a run fails: enough for a traceback."""

PrintLine = Callable[[str], None]
RunValue = str | int | float | bool


class RunFailedError(RuntimeError):
    """A run ended before its last round, or none of its rounds counted, and not because of bad input."""


@contextmanager
def control_of(folder: ServerFolder) -> Iterator[SuperLinkControl]:
    """What the operator of a running server can ask it.

    Raises:
        InputError: No server runs in this folder, or only another user may open its socket.
    """
    with SuperLinkControl(folder.socket) as control:
        try:
            control.check()
        except httpx.TransportError as error:
            raise InputError(
                f"no server runs in {folder.root}, or this user may not open {folder.socket}: start it (ipfl "
                "deploy server), and run this command on its machine, as its user"
            ) from error
        yield control


def is_running(folder: ServerFolder) -> bool:
    """Whether a server runs in this folder that this user can speak to."""
    with suppress(InputError), control_of(folder):
        return True
    return False


def synchronize_keys(control: SuperLinkControl, registry: Registry) -> None:
    """Registers the keys of all accounts with the SuperLink, and unregisters those that have none."""
    registered = {fingerprint(key): node for node, key in control.nodes().items()}
    accounts = {account.fingerprint: account for account in registry.accounts}
    for name in registered.keys() - accounts.keys():
        control.unregister(registered[name])
    for name in accounts.keys() - registered.keys():
        try:
            control.register(accounts[name].key.encode(), accounts[name].name)
        except httpx.HTTPStatusError as error:
            raise InputError(
                f"Flower does not register the key {name} of client {accounts[name].client}; a key that was "
                "replaced cannot come back"
            ) from error


def run_and_follow(folder: ServerFolder, settings: Mapping[str, RunValue], print_line: PrintLine) -> None:
    """Starts a run on the running server, shows its lines, and returns when it has ended.

    Any exception here, also Ctrl-C, stops the run.

    Args:
        folder: The federation's folder.
        settings: Values for the keys in the app's `[tool.flwr.app.config]`.
        print_line: Called with each line of the run.

    Raises:
        InputError: The run failed because of bad input.
        RunFailedError: It failed for another reason, or was stopped.
    """
    with control_of(folder) as control:
        run = control.start_run(bundle_app(folder.app), settings)
        ended: tuple[LineKind, str] | None = None
        other_lines: deque[str] = deque(maxlen=MAX_FAILURE_LINES)
        try:
            for line in control.log_lines(run):
                said = read_line(line)
                if said is None:
                    other_lines.append(line)
                elif said[0] is LineKind.PROGRESS:
                    print_line(said[1])
                else:
                    ended = said
            status, details = control.status(run)
        except httpx.TransportError as error:
            raise RunFailedError(
                "the server does not answer any more; start it again, and resume the run"
            ) from error
        except BaseException:
            with suppress(httpx.HTTPError):
                control.stop_run(run)
            raise
    if ended is not None:  # the run has said itself how it ended
        kind, text = ended
        raise (InputError if kind is LineKind.INPUT_ERROR else RunFailedError)(text)
    if status != COMPLETED_STATUS:
        for line in other_lines:  # with the traceback, if there is one
            print_line(line)
        raise RunFailedError(f"the run ended as {status} ({details})")
