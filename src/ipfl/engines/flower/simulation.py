"""Flower's simulation on Ray, inside this process: no process is left to the user to start or to end.

Flower's runtime and Ray are driven from a thread; the ServerApp there only hands the grid over, so that the
round loop stays in the main thread, with its progress, its results and Ctrl-C. Ray's own processes end with
this one, even if it is killed. Nothing listens beyond the loopback interface.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from ipfl.client.network import Factory
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.core import Engine, Method
from ipfl.core.signals import exit_on_sigterm
from ipfl.engines.flower import require_flower
from ipfl.engines.local import cores
from ipfl.errors import InputError
from ipfl.runs.config import Config
from ipfl.runs.loop import EngineFactory, Result

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

    from ipfl.engines.flower.client_app import NodeApp
    from ipfl.engines.flower.plan import Plan

START = 300.0
"""Seconds that Ray may take to start."""
POLL = 0.02
"""Seconds between looks at the mail."""
NODES = "nodes"
"""In the folder of a run that was tried out: what its nodes remember."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning at every start
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "2",  # how long Ray's helpers outlive a process that was killed
}
WINDOW = 16
"""Messages on their way at once, at least: Flower's own work grows with nodes × messages on their way."""
END = 10.0
"""Seconds that clients at work get to finish when the simulation ends."""


@contextmanager
def silent_flower() -> Iterator[None]:
    """Flower's log is for those who run Flower; what matters of it becomes events and errors."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def environment(**changes: str) -> Iterator[None]:
    """Environment variables for Flower and Ray; whatever they change themselves is undone as well."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _short_place() -> str | None:
    """A folder whose name is short enough for Ray's sockets (107 bytes, of which Ray takes 64)."""
    return "/tmp" if len(gettempdir()) > 24 and os.path.isdir("/tmp") else None


class Simulation:
    """Simulated nodes; `grid` is the way to them. Close it.

    Args:
        app: What nodes run.
        nodes: How many.
        workers: Processes that play them in turn; None: one per core.
    """

    def __init__(self, app: ClientApp, nodes: int, workers: int | None = None):
        from flwr.serverapp import ServerApp

        self._workers = cores() if workers is None else workers
        self.window = max(WINDOW, 4 * self._workers)
        self._done = threading.Event()
        self._failed: BaseException | None = None
        handed: SimpleQueue[Grid] = SimpleQueue()
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            handed.put(grid)
            self._done.wait()

        self._stack = ExitStack()
        self._stack.enter_context(silent_flower())
        self._folder = self._stack.enter_context(TemporaryDirectory(prefix="ipfl-ray-", dir=_short_place()))
        self._stack.enter_context(environment(FLWR_HOME=self._folder, **ENVIRONMENT))
        self._thread = threading.Thread(
            target=self._run, args=(server, app, nodes), name="flower", daemon=True
        )
        self._thread.start()
        try:
            self.grid = self._take(handed)
            self._wait_for(nodes)
        except BaseException:
            self.close()
            raise

    def _run(self, server: Any, app: ClientApp, nodes: int) -> None:
        from flwr.simulation import run_simulation

        init = {
            "address": "local",
            "num_cpus": self._workers,
            "include_dashboard": False,
            "_temp_dir": self._folder,
            "_node_ip_address": "127.0.0.1",
            "logging_level": logging.ERROR,
            "log_to_driver": False,
        }
        config = {"init_args": init, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        try:
            run_simulation(server, app, nodes, backend_config=config)  # type: ignore[arg-type]
        except BaseException as error:  # whatever ended it, the main thread must hear of it
            self._failed = error

    def _take(self, handed: SimpleQueue[Grid]) -> Grid:
        while True:
            self.alive()
            try:
                return handed.get(timeout=0.1)
            except Empty:
                continue

    def _wait_for(self, nodes: int) -> None:
        until = time.monotonic() + START
        while len(list(self.grid.get_node_ids())) < nodes:
            self.alive()
            if time.monotonic() > until:
                raise RuntimeError(f"Flower's simulation did not start within {START:g} s")
            time.sleep(0.05)

    def started(self) -> None:
        """To be called once nodes have answered: Ray is up then, with its own handler for SIGTERM.

        Ours takes its place: it unwinds the stack, so that everything is closed.
        """
        self._stack.enter_context(exit_on_sigterm())

    def alive(self) -> None:
        """Raises if the simulation has ended by itself."""
        if not self._thread.is_alive() and not self._done.is_set():
            reason = self._failed
            while reason is not None and reason.__cause__ is not None:
                reason = reason.__cause__  # Flower says only that there was one
            raise RuntimeError(f"Flower's simulation ended: {reason}") from self._failed

    def close(self) -> None:
        """Ends nodes and Ray; clients at work get a moment, then Ray is ended under them."""
        self._done.set()
        try:
            self._thread.join(END)
        finally:
            if self._thread.is_alive():
                import ray

                ray.shutdown()
                self._thread.join()
            self._stack.close()


def simulated(
    config: Config, nodes: int | None = None, *, workers: int | None = None, half: bool = False
) -> EngineFactory:
    """An engine for `ipfl.run`: the clients of a config's task on simulated Flower nodes.

    Args:
        config: The run's config, from which each node rebuilds its part of the task.
        nodes: Number of nodes; None: one for each client. With fewer, a node holds several clients.
        workers: Processes that play the nodes in turn; None: one per core. Changes no result.
        half: Whether models travel as float16; results then differ from those of other engines.

    Raises:
        InputError: Flower is not installed.
    """
    require_flower(simulation=True)

    def hire(task: Task, method: Method[Any], train: TrainConfig, seed: int, memory: Path | None) -> Engine:
        from ipfl.engines.flower.client_app import NodeApp, Places
        from ipfl.engines.flower.plan import Plan

        clients = len(task.data.clients) + len(task.data.unseen)
        if nodes is not None and nodes > clients:
            raise InputError(f"--nodes {nodes}: there are only {clients} clients to live on them")
        plan = Plan(method, train, config.task, seed, classes=None)
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="ipfl-nodes-")))
            memory = memory or scratch / "memory"
            app = NodeApp(places=Places(memory.resolve(), scratch / "received"), frank=True)
            simulation = stack.enter_context(closing(Simulation(app, nodes or clients, workers)))
            return engine_over(simulation, task, plan, memory, clients, half, stack.pop_all())

    return hire


def engine_over(
    simulation: Simulation,
    task: Task,
    plan: Plan,
    memory: Path | None,
    clients: int,
    half: bool,
    stack: ExitStack,
) -> Engine:
    """The engine over a simulation, with everyone greeted."""
    from ipfl.engines.flower.directory import Directory
    from ipfl.engines.flower.engine import FlowerEngine
    from ipfl.engines.flower.nodes import Nodes
    from ipfl.engines.flower.post import Post

    nodes = Nodes(Post(simulation.grid, None, POLL, simulation.alive, simulation.window), Directory())
    with stack:
        nodes.gather(clients, START, plan, lambda _: None, picky=True)
        simulation.started()
        return FlowerEngine(
            nodes, task, plan, memory, named=False, half=half, strict=True, closing=stack.pop_all()
        )


def simulate(
    app: NodeApp, nodes: int, *, model: Factory | None = None, workers: int | None = None, **order: Any
) -> Result:
    """Tries an app out: simulated nodes that run it, and the server that `server_app` would be.

    Args:
        app: What nodes run, with your own loader and model.
        nodes: How many; each is one client.
        model: The same model for the server; None: the config's.
        workers: Processes that play the nodes in turn; None: one per core.
        **order: The app's run config, such as `config`, `out` and `rounds`; see `server_app.Order`.
    """
    require_flower(simulation=True)
    from ipfl.engines.flower.client_app import Places
    from ipfl.engines.flower.server_app import Order, serve

    wanted = Order.read({"nodes": nodes, "wait": START, **order})
    with ExitStack() as stack:
        if app.places is None:  # simulated nodes have no home of their own
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="ipfl-nodes-")))
            app.places = Places(wanted.out.resolve() / NODES, scratch)
        simulation = stack.enter_context(closing(Simulation(app, nodes, workers)))
        return serve(simulation.grid, wanted, model)
