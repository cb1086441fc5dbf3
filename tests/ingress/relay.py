"""A plain reverse proxy in front of a server, on a thread of its own: what comes in goes out, and whoever closes one
side closes the other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 60.0
PIECE = 65536


@contextmanager
def relaying(to_port: int) -> Iterator[int]:
    """The port on which it listens."""
    ports: list[int] = []
    started = threading.Event()
    stopped: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        tasks: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await _between(reader, writer, to_port)
            finally:
                tasks.discard(task)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        stop = asyncio.Event()
        stopped.append((asyncio.get_running_loop(), stop))
        ports.append(server.sockets[0].getsockname()[1])
        started.set()
        await stop.wait()
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(PATIENCE_S)
        yield ports[0]
    finally:
        for loop, stop in stopped:
            loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


async def _between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_port: int) -> None:
    """Until one side has closed."""
    behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", to_port)
    ways = {
        asyncio.ensure_future(_carry(reader, behind_writer)),
        asyncio.ensure_future(_carry(behind_reader, writer)),
    }
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for side in (writer, behind_writer):
            side.close()
            with contextlib.suppress(OSError):
                await side.wait_closed()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
