"""A cluster of real workers behind a real HTTP server, in a thread: for clients that know nothing of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from tests.ingress.asgi import eventually
from tests.ingress.local import Cluster, cluster

START_S = 60.0


@dataclass
class Web:
    """`at` belongs to the server's loop: ask it there."""

    url: str
    port: int
    at: Cluster
    loop: asyncio.AbstractEventLoop

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_S)

    def wait_until(self, holds: Callable[[], object]) -> None:
        self.on_loop(eventually(holds))


@contextmanager
def serving(folder: Path, *, socket_bytes: int = 0, **options: Any) -> Iterator[Web]:
    """`options`: of `cluster`. `socket_bytes`: what the system holds of an answer that is not read; 0 = as it likes."""
    ready: list[Web] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with cluster(folder, **options) as at:
            listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
            if socket_bytes:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, socket_bytes)
            web = uvicorn.Server(
                uvicorn.Config(at.app, log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
            )
            task = asyncio.create_task(web.serve(sockets=[listener]))
            await eventually(lambda: web.started)
            port = listener.getsockname()[1]
            ready.append(Web(f"http://127.0.0.1:{port}", port, at, asyncio.get_running_loop()))
            started.set()
            await asyncio.to_thread(stop.wait)
            web.should_exit = True
            await task
            listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(START_S)
        yield ready[0]
    finally:
        stop.set()
        thread.join(START_S)
    assert not thread.is_alive()
