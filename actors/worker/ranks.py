"""The ranks of a tensor parallel worker, seen from both sides.

The first rank lives in the worker's own process, with the engine: it decides, and tells the others through
torch.distributed. The others are actors that the worker has started; Ray carries only their starting and their signs of
life. They end with the worker, and the worker ends with any of them: what is left of a group is of no use.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from actors.runner.base import ModelRunner
from actors.worker.build import build_rank
from configs import ClusterConfig, RemoraConfig, from_tree

if TYPE_CHECKING:
    from actors.runner.torch.runner import TorchRunner

logger = logging.getLogger("remora.worker")

ORPHAN_S = 5.0
"""How long a rank that has lost its worker may live on: to be asked why, if the worker is alive after all."""
_LOOPBACK = "127.0.0.1"


class RankActor:
    """A rank but the first, in a process of its own. `on_sigterm(call)` has SIGTERM call that."""

    def __init__(self, config: dict[str, Any], rank: int, on_sigterm: Callable[[Callable[[], None]], None]) -> None:
        self._config = from_tree(RemoraConfig, config)
        self._number = rank
        self._thread = ThreadPoolExecutor(1, "remora-compute")
        self._on_sigterm = on_sigterm
        self._asked_to_end = threading.Event()

    async def load(self) -> dict[str, object]:
        """Load this rank's part of the model. Says where that is. Raises what the model's source or the parts do."""
        loop = asyncio.get_running_loop()
        self._rank = await loop.run_in_executor(self._thread, build_rank, self._config, self._number)
        self._on_sigterm(self._asked_to_end.set)
        return {"rank": self._number, "pid": os.getpid(), "node": socket.gethostname(), "network": network()}

    async def obey(self, host: str, port: int) -> None:
        """Compute what the first rank tells, until it says stop. However else it ends, the process ends soon after."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._obey, host, port)
        except BaseException as error:
            logger.critical("rank %d ends: %r", self._number, error)
            threading.Timer(ORPHAN_S, os._exit, (1,)).start()
            raise

    async def beat(self) -> bool:
        """A sign of life. True: this process has got SIGTERM, so the worker has to go."""
        return self._asked_to_end.is_set()

    def _obey(self, host: str, port: int) -> None:
        from actors.runner.torch.group import Meeting

        self._rank.obey(Meeting(host, port), self._config.cluster.dead_s)


class Ranks:
    """The others, as the worker sees them. `actors`: their handles, in order of rank, from 1.

    `lost(why)`: called when one is gone, hangs, or has failed; it ends this process. `asked_to_end()`: when one got
    SIGTERM.
    """

    def __init__(
        self,
        actors: list[Any],
        config: ClusterConfig,
        lost: Callable[[str], None],
        asked_to_end: Callable[[], None],
    ) -> None:
        self._actors = actors
        self._config = config
        self._lost = lost
        self._asked_to_end = asked_to_end
        self._stopping = threading.Event()
        self._loading: list[Future[dict[str, Any]]] = [actor.load.remote().future() for actor in actors]
        self.rows: list[dict[str, Any]] = []
        """Each one's number, process and node."""

    def meet(self, runner: ModelRunner, address: str) -> None:
        """Wait until all have loaded, and bring them together. `address`: of this node, for ranks on others.

        Raises what kept one from loading, and RuntimeError when they do not find each other.
        """
        if not self._actors:
            return
        done, _ = concurrent.futures.wait(self._loading, return_when=concurrent.futures.FIRST_EXCEPTION)
        for loaded in done:
            loaded.result()
        self.rows = [loaded.result() for loaded in self._loading]
        networks = {row.pop("network") for row in self.rows}
        together = networks == {network()}
        listening = socket.create_server((_LOOPBACK if together else address, 0))
        host, port = listening.getsockname()[:2]
        obeying: list[Future[None]] = [actor.obey.remote(host, port).future() for actor in self._actors]
        cast("TorchRunner", runner).lead(listening, self._config.dead_s)
        for number, rank in enumerate(obeying, 1):
            rank.add_done_callback(partial(self._ended, number))
        threading.Thread(target=self._watch, name="remora-ranks", daemon=True).start()

    def stop(self) -> None:
        """From now on they may end."""
        self._stopping.set()

    def _ended(self, number: int, obeying: Future[None]) -> None:
        error = obeying.exception()
        if error is not None and not self._stopping.is_set():
            self._lost(f"rank {number} is gone: {_why(error)}")

    def _watch(self) -> None:
        """Who is frozen breaks no connection, and what waits for it in a GPU's kernel has no clock."""
        while not self._stopping.wait(self._config.heartbeat_s):
            for number, actor in enumerate(self._actors, 1):
                why = self._trouble(actor.beat.remote().future())
                if why and not self._stopping.is_set():
                    self._lost(f"rank {number} {why}")

    def _trouble(self, beat: Future[bool]) -> str:
        try:
            if beat.result(self._config.dead_s):
                self._asked_to_end()
        except concurrent.futures.TimeoutError:
            return f"has been silent for {self._config.dead_s:.1f} s"
        except Exception as error:
            return f"is gone: {_why(error)}"
        return ""


def network() -> str:
    """Names what this process's loopback is: two that say the same reach each other there (Linux)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"


def _why(error: BaseException) -> str:
    """What ended a call to another rank: the last line of what it raised there. Of a process that died, Ray has a lot
    to say that nobody knows."""
    text = str(error).strip()
    return text.splitlines()[-1] if "ray::" in text else type(error).__name__
