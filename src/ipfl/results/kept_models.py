"""Models of clients in the folder of a run whose data may be elsewhere later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ipfl.client.kept_predictors import VECTORS, kept_clients, kept_vectors, max_vectors, write_predictor
from ipfl.core import ClientId
from ipfl.errors import NotSupportedError
from ipfl.results.result_models import PlayedRun
from ipfl.system.files import RECORD_SUFFIX, make_folder, remove, remove_drafts, remove_folder


class KeptModels:
    """The clients' models after the last round, in the folder of a run on a user's own data.

    The clients write it themselves while they are evaluated for the last time (`keep_predictor`), so nobody
    is personalized twice, and no more models are in memory than clients are at work. `complete` makes the
    others: of clients that were not evaluated, or of a run that was interrupted or resumed.

    Args:
        folder: For these files alone.
        tell: Told how many models `complete` makes, if any.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]):
        self.folder, self._tell = folder, tell
        self._round: int | None = None
        """After which the models in the folder were made; None: before this process."""

    def begin(self, round: int) -> None:
        """Makes room for the models after this round; what was there is of another."""
        remove_folder(self.folder)
        make_folder(self.folder / VECTORS)
        self._round = round

    def complete(self, played: PlayedRun) -> None:
        """Makes the models that are missing, ascending, and removes those that there is no room for.

        Clients that the method has no model for are left out. May be repeated.
        """
        if self._round != played.rounds - 1:
            self.begin(played.rounds - 1)
        there, most = set(kept_clients(self.folder)), max_vectors(played.network.size)
        # Not the unseen ones: all of them were evaluated, or the method has no model for them.
        if missing := sum(client not in there for client in played.task.data.clients if client < most):
            they = f"{missing:,} clients" if missing > 1 else "1 client"
            self._tell(f"making the models of {they}, which the last evaluation did not leave in the folder")
        used: set[str] = set()
        for client in played.clients:
            if client not in there:
                try:
                    write_predictor(self.folder, client, played.predictor(client))
                except NotSupportedError:
                    continue
            names = {*kept_vectors(self.folder, client)}
            if len(used) + len(names - used) > most:
                self._remove_from(client)
                break
            used |= names
        self._sweep(used)

    def _remove_from(self, first: ClientId) -> None:
        """Removes the models of a client and of all with larger ids."""
        for client in kept_clients(self.folder):
            if client >= first:
                remove(self.folder / f"{client}{RECORD_SUFFIX}")

    def _sweep(self, used: set[str]) -> None:
        """Removes vectors of nobody, and what a worker process that died has left half-written."""
        remove_drafts(self.folder)
        for path in (self.folder / VECTORS).iterdir():
            if path.name.removesuffix(RECORD_SUFFIX) not in used:
                remove(path)
