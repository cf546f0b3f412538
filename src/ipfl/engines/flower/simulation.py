"""Flower's simulation on Ray, inside this process: there is nothing to start before or to stop after a run.

Flower's runtime and Ray are driven from a thread. The ServerApp there only hands its grid over, so that the
round loop stays in the main thread, with its progress, its results and Ctrl-C. Ray's own processes end with
this one, even if it is killed. Nothing listens beyond the loopback interface.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ipfl.config.task_section import TaskConfig
from ipfl.core import Engine
from ipfl.engines import EngineContext, EngineFactory, refuse_wrapped_clients
from ipfl.engines.flower import require_flower
from ipfl.engines.local_engine import count_cores
from ipfl.engines.local_ray import RAY_ENVIRONMENT, changed_environment, ray_arguments, short_temp_folder
from ipfl.errors import InputError
from ipfl.system.signals import exit_on_sigterm

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

START_TIMEOUT_SECONDS = 300.0
"""Seconds that Ray may take to start."""
POLL_SECONDS = 0.02
"""Seconds between two looks for replies."""
STOP_TIMEOUT_SECONDS = 10.0
"""Seconds that clients at work get to finish when the simulation ends."""
MIN_IN_FLIGHT = 16
"""Messages that are on their way at the same time, at least. Flower's own work grows with the product of
nodes and messages on their way, so their number is limited."""


@contextmanager
def silence_flower() -> Iterator[None]:
    """Hides Flower's log: what matters of it becomes events and errors."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


class Simulation:
    """Simulated nodes; `grid` connects to them. Close it after use.

    Args:
        app: What nodes run.
        nodes: Number of nodes.
        workers: Processes that play the nodes in turn; None: one per core.
    """

    def __init__(self, app: ClientApp, nodes: int, workers: int | None = None):
        from flwr.serverapp import ServerApp

        self.workers = count_cores() if workers is None else workers
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        grids: SimpleQueue[Grid] = SimpleQueue()
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            grids.put(grid)
            self._stopping.wait()

        self._resources = ExitStack()
        self._resources.enter_context(silence_flower())
        self._folder = self._resources.enter_context(
            TemporaryDirectory(prefix="ipfl-ray-", dir=short_temp_folder())
        )
        self._resources.enter_context(changed_environment(FLWR_HOME=self._folder, **RAY_ENVIRONMENT))
        self._thread = threading.Thread(
            target=self._run, args=(server, app, nodes), name="flower", daemon=True
        )
        self._thread.start()
        try:
            self.grid = self._wait_for_grid(grids)
            self._wait_for_nodes(nodes)
        except BaseException:
            self.close()
            raise

    def _run(self, server: ServerApp, app: ClientApp, nodes: int) -> None:
        from ipfl.engines.flower.flwr_internals import run_simulation

        backend = {
            "init_args": ray_arguments(self.workers, self._folder),
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        }
        try:
            run_simulation(server, app, nodes, backend)
        except BaseException as error:  # `check_alive` raises it in the main thread
            self._error = error

    def _wait_for_grid(self, grids: SimpleQueue[Grid]) -> Grid:
        while True:
            self.check_alive()
            try:
                return grids.get(timeout=0.1)
            except Empty:
                continue

    def _wait_for_nodes(self, nodes: int) -> None:
        until = time.monotonic() + START_TIMEOUT_SECONDS
        while len(list(self.grid.get_node_ids())) < nodes:
            self.check_alive()
            if time.monotonic() > until:
                raise RuntimeError(f"Flower's simulation did not start within {START_TIMEOUT_SECONDS:g} s")
            time.sleep(0.05)

    def handle_sigterm(self) -> None:
        """Lets SIGTERM unwind the stack, so that everything is closed.

        To be called once nodes have replied: by then Ray has started and installed its own handler, which
        ours replaces.
        """
        self._resources.enter_context(exit_on_sigterm())

    def check_alive(self) -> None:
        """Raises if the simulation has ended by itself."""
        if not self._thread.is_alive() and not self._stopping.is_set():
            reason = self._error
            while reason is not None and reason.__cause__ is not None:
                reason = reason.__cause__  # Flower's own error does not tell the reason
            raise RuntimeError(f"Flower's simulation ended: {reason}") from self._error

    def close(self) -> None:
        """Ends nodes and Ray; clients at work get some seconds, then Ray is shut down."""
        self._stopping.set()
        try:
            self._thread.join(STOP_TIMEOUT_SECONDS)
        finally:
            if self._thread.is_alive():
                import ray

                ray.shutdown()
                self._thread.join()
            self._resources.close()


def simulation_engine(
    task: TaskConfig,
    nodes: int | None = None,
    *,
    workers: int | None = None,
    float16: bool = False,
    print_line: Callable[[str], object] = lambda line: None,
) -> EngineFactory:
    """An engine for `ipfl.run`: the clients of a config's task on simulated Flower nodes.

    Args:
        task: The section `[task]`, from which each node rebuilds its part of the data.
        nodes: Number of nodes; None: one for each client. With fewer, a node holds several clients.
        workers: Processes that play the nodes in turn; None: one per core. Changes no result.
        float16: Whether models travel as float16; results then differ from those of other engines.
        print_line: Called with a line before Ray is started, which takes some seconds.

    Raises:
        InputError: Flower is not installed.
    """
    require_flower(simulation=True)

    def make_engine(context: EngineContext) -> Engine:
        from ipfl.engines.flower.node_app import NodeApp, NodeFolders

        refuse_wrapped_clients(context)
        clients = _count_clients(context)
        if nodes is not None and nodes > clients:
            raise InputError(f"{nodes} nodes: there are only {clients} clients to put on them")
        print_line("starting Flower and Ray …")
        with ExitStack() as stack:
            temporary = Path(stack.enter_context(TemporaryDirectory(prefix="ipfl-nodes-")))
            memory = context.memory or temporary / "memory"
            folders = NodeFolders(memory.resolve(), temporary / "received")
            app = NodeApp(folders=folders, send_tracebacks=True)
            simulation = stack.enter_context(closing(Simulation(app, nodes or clients, workers)))
            return engine_on(
                simulation,
                replace(context, memory=memory),
                task,
                float16=float16,
                resources=stack.pop_all(),
            )

    return make_engine


def _count_clients(context: EngineContext) -> int:
    return len(context.task.data.clients) + len(context.task.data.unseen)


def engine_on(
    simulation: Simulation,
    context: EngineContext,
    task: TaskConfig,
    *,
    float16: bool = False,
    resources: ExitStack,
) -> Engine:
    """The engine over a simulation, once all its clients are present.

    Args:
        simulation: The nodes.
        context: What the engine is made from; the nodes use the same folder for what clients remember.
        task: The section `[task]`, for the nodes.
        float16: Whether models travel as float16.
        resources: Closed with the engine, or at once if the clients do not come.
    """
    from ipfl.config.train_section import AdaptConfig, PrivacyConfig
    from ipfl.engines.flower.flower_engine import FlowerEngine
    from ipfl.engines.flower.membership import Membership, NodeDirectory
    from ipfl.engines.flower.run_settings import RunSettings
    from ipfl.engines.flower.transport import Transport

    settings = RunSettings(
        context.method,
        context.train,
        task,
        context.seed,
        None,
        context.privacy or PrivacyConfig(),
        context.adapt or AdaptConfig(),
    )
    # A client's time runs from the sending of its message. With a deadline there is one message for each
    # worker process, so that no time passes while a message waits for a process that is free.
    in_flight = max(MIN_IN_FLIGHT, 4 * simulation.workers) if context.deadline is None else simulation.workers
    transport = Transport(simulation.grid, None, POLL_SECONDS, simulation.check_alive, in_flight)
    membership = Membership(transport, NodeDirectory())
    with resources:
        membership.wait_for_clients(
            _count_clients(context), START_TIMEOUT_SECONDS, settings, lambda _: None, fail_on_refusal=True
        )
        simulation.handle_sigterm()
        return FlowerEngine(
            membership,
            context.task,
            settings,
            context.memory,
            memory_on_nodes=False,
            client_deadline=context.deadline,
            float16=float16,
            raise_client_errors=True,
            resources=resources.pop_all(),
        )
