"""Calls to a Redis server: connections, scripts, patience, and errors that name no password."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
)
from redis.retry import Retry

from actors.records import StoreError
from cluster.store.limits import StoreLimits
from cluster.store.urls import secrets_of, shown

T = TypeVar("T")
Value = bytes | str | int | float

CONNECT_S = 5.0
RETRY_PAUSE_S = 0.1
_PREFIX = re.compile(r"[A-Za-z0-9._:-]+")
_SCRIPTS = Path(__file__).parent / "lua"
_REFUSED = (AuthenticationError, AuthorizationError)
"""These are ConnectionErrors too, but trying again would not help."""


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """`timeout_s`: for one answer, and for how long what may be done twice is tried again."""

    url: str = field(repr=False)
    prefix: str = "remora"
    timeout_s: float = 30.0
    limits: StoreLimits = field(default_factory=StoreLimits)


class RedisLink:
    """For any thread. Connects when it is first used, and anew after every failure."""

    def __init__(self, settings: RedisSettings) -> None:
        """Raises StoreError for an URL or a prefix that cannot be used."""
        self.name = f"session store {shown(settings.url)}"
        self._secrets = secrets_of(settings.url)
        self._patience_s = settings.timeout_s
        if not _PREFIX.fullmatch(settings.prefix):
            raise StoreError(f"store.prefix: {settings.prefix!r}; it must be of the characters A-Z a-z 0-9 . _ : -")
        self._tag = b"{%s}:" % settings.prefix.encode()
        try:
            self._client = redis.Redis.from_url(
                settings.url,
                socket_timeout=settings.timeout_s,
                socket_connect_timeout=min(CONNECT_S, settings.timeout_s),
                **({} if settings.url.startswith("unix:") else {"socket_keepalive": True}),
                retry=Retry(NoBackoff(), 0),
                client_name="remora",
            )
        except (ValueError, TypeError):  # Its text may hold a piece of the password.
            hint = "are special characters in its user and password percent-encoded?"
            raise StoreError(f"{self.name}: the URL cannot be read; {hint}") from None

    def key(self, *parts: bytes) -> bytes:
        """A key of this store. All have the same hash tag: one script may use them together, in a Redis Cluster too."""
        return self._tag + b":".join(parts)

    def script(self, name: str, keys: Sequence[bytes], *args: Value, again: bool = True) -> Any:
        """Run one of the scripts beside this file. `again`: it may be done twice, so try until patience ends. Raises
        StoreError."""
        registered = self._client.register_script(_source(name))
        return self.call(lambda _: registered(keys=list(keys), args=list(args)), again=again)

    def call(self, work: Callable[[redis.Redis], T], *, again: bool = True, patience_s: float | None = None) -> T:
        """`work(client)`. Raises StoreError."""
        give_up_at = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        while True:
            try:
                return work(self._client)
            except (ConnectionError, TimeoutError, ReadOnlyError) as error:
                if isinstance(error, _REFUSED) or not again or time.monotonic() >= give_up_at:
                    raise self.failed(error) from None
                if isinstance(error, ReadOnlyError):  # A replica, since a failover: its name may lead elsewhere by now.
                    self._client.connection_pool.disconnect()
            except (RedisError, OSError, ValueError, TypeError, OverflowError) as error:
                raise self.failed(error) from None
            time.sleep(RETRY_PAUSE_S)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Values that cannot be stored, and stored ones that make no sense, are StoreErrors."""
        try:
            yield
        except (ValueError, OverflowError, msgpack.UnpackException) as error:
            raise self.failed(error) from error

    def failed(self, error: BaseException) -> StoreError:
        """The same in words for people, and without the URL's secrets."""
        if isinstance(error, OutOfMemoryError):
            text = f"Redis is out of memory, nothing was stored ({error})"
        elif isinstance(error, TimeoutError):
            text = f"no answer within {self._patience_s:g} s ({error})"
        elif isinstance(error, NoPermissionError):
            text = f"its user may not do what is needed ({error})"
        else:
            text = str(error) or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return StoreError(f"{self.name}: {text}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._client.connection_pool.disconnect()


_OF_RESULTS = ("claim_result", "put_result", "get_result", "release_result")


@functools.cache
def _source(name: str) -> str:
    """A script, with what scripts of its kind have in common put behind its first line, which must stay the first."""
    common = "results" if name in _OF_RESULTS else "common"
    first, _, rest = (_SCRIPTS / f"{name}.lua").read_text(encoding="utf-8").partition("\n")
    return "\n".join((first, (_SCRIPTS / f"{common}.lua").read_text(encoding="utf-8"), rest))
