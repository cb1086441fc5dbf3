"""Which keys are good, and for whom: read at the start, and again whenever the file changes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from actors.ingress.metrics import Metrics
from configs import AuthConfig, TenantLimits
from configs.keys import KeyEntry, KeysFile, configured_keys, read_keys_file
from configs.load import EVERY_TENANT, ConfigError

log = logging.getLogger(__name__)

MAX_KEY_BYTES = 512
UNLIMITED = TenantLimits()

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the tenant whose data it may see, and whether it may do what concerns all tenants."""

    tenant: str
    key_name: str = ""
    admin: bool = False


class KeyRing:
    """`find` a caller by its key; `limits` of a tenant. A file that cannot be used leaves the old keys in force, and
    says so in the log and in `remora_keys_file_usable`.

    Raises ConfigError or OSError when there is nothing usable to begin with.
    """

    def __init__(
        self,
        auth: AuthConfig,
        tenants: dict[str, TenantLimits],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.required = bool(auth.keys_file or auth.keys)
        """Whether a key is asked for at all."""
        self._auth = auth
        self._configured_tenants = tenants
        self._metrics = metrics
        self._clock = clock
        self._blind = secrets.token_bytes(32)
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        self._tenants = tenants
        self._stamp: Stamp | None = None
        self._trouble = ""
        self._looked_at = clock()
        file = KeysFile(())
        if auth.keys_file:
            self._stamp = _stamp(auth.keys_file)
            file = read_keys_file(auth.keys_file)
        self._take(file)

    def find(self, key: bytes) -> Caller | None:
        """The caller that this key belongs to.

        How long this takes says nothing about the keys there are: the table is looked up under a keyed hash that
        nobody outside can compute, and what is found is compared in constant time.
        """
        if not 0 < len(key) <= MAX_KEY_BYTES:
            return None
        digest = hashlib.sha256(key).digest()
        known, caller = self._callers.get(self._blinded(digest), (b"", None))
        return caller if hmac.compare_digest(known, digest) else None

    def limits(self, tenant: str) -> TenantLimits:
        return self._tenants.get(tenant) or self._tenants.get(EVERY_TENANT, UNLIMITED)

    def weight(self, tenant: str) -> float:
        """A tenant's share of a worker beside others (rule P7); 0 where no tenant has one."""
        if not any(limits.weight for limits in self._tenants.values()):
            return 0.0
        return self.limits(tenant).weight or 1.0

    async def refresh(self) -> None:
        """Read the file again if it has changed; looks at most every `reload_s`. Callers served meanwhile by others
        meet the old keys."""
        now = self._clock()
        if not self._auth.keys_file or now - self._looked_at < self._auth.reload_s:
            return
        self._looked_at = now
        try:
            stamp = _stamp(self._auth.keys_file)
            if stamp == self._stamp:
                return
            file = await asyncio.to_thread(read_keys_file, self._auth.keys_file)
        except OSError as error:
            self._complain(f"it cannot be read: {error.strerror}")
            return
        except ConfigError as error:
            self._complain(str(error))
            return
        self._stamp = stamp
        self._take(file)
        log.info("the keys file has changed: %d keys", len(file.keys))

    def _take(self, file: KeysFile) -> None:
        """Both at once, so that a key never meets another version's limits."""
        entries = [*configured_keys(self._auth), *file.keys]
        self._callers = dict(self._known(entries))
        self._tenants = {**self._configured_tenants, **file.tenants}
        self._trouble = ""
        self._metrics.keys_file_usable.set(1)

    def _known(self, entries: Iterable[KeyEntry]) -> Iterable[tuple[bytes, tuple[bytes, Caller]]]:
        for entry in entries:
            digest = bytes.fromhex(entry.sha256)
            yield self._blinded(digest), (digest, Caller(entry.tenant, entry.name, entry.admin))

    def _blinded(self, digest: bytes) -> bytes:
        return hmac.digest(self._blind, digest, "sha256")

    def _complain(self, why: str) -> None:
        self._metrics.keys_file_usable.set(0)
        if why != self._trouble:
            self._trouble = why
            log.error("the keys file has changed and cannot be used, so that the old keys stay in force: %s", why)


def _stamp(path: str) -> Stamp:
    """What changes when the file does, be it written or replaced. Raises OSError."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns
