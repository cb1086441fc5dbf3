"""What a worker is made of, so that one made of something else can be told and replaced."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from actors.model.source import find
from actors.runner.toy import toy_weights
from cluster.environment import PACKAGES, code_root
from configs import RemoraConfig
from configs.digest import store_digest, worker_digest

logger = logging.getLogger("remora.pool")

_SOURCES = frozenset({".py", ".lua", ".cpp", ".h", ".cu"})


@dataclass(frozen=True, slots=True)
class Release:
    """Digests of settings, code and weights; `restart` counts the rollouts that were asked for by hand. `store`: digest
    of where turns are kept.

    Weights that are empty are not known where the pool runs: they are not looked at. A worker is told the label of its
    release when it is started, and tells it to whichever pool asks: what it was meant to be made of, so that nodes that
    differ from the pool's never make it replace workers for ever.
    """

    settings: str
    code: str = ""
    weights: str = ""
    restart: int = 0
    store: str = ""

    @property
    def label(self) -> str:
        return f"{self.settings}/{self.code}/{self.weights}/{self.restart}/{self.store}"

    def is_same(self, other: Release) -> bool:
        """But for restarts."""
        weights = not self.weights or not other.weights or self.weights == other.weights
        return weights and (self.settings, self.code) == (other.settings, other.code)

    def after(self, labels: list[str]) -> Release:
        """This release as far as its restarts have got by what workers say: a pool that starts in the middle of a
        rollout goes on with it."""
        known = [release for release in map(parsed, labels) if release is not None and self.is_same(release)]
        return replace(self, restart=max([self.restart, *(release.restart for release in known)]))

    def replaces(self, label: str) -> bool:
        """Whether a worker of this label is one of yesterday."""
        release = parsed(label)
        return release is None or not self.is_same(release) or release.restart < self.restart

    def has_lost(self, label: str) -> bool:
        """Whether a worker of this label keeps its turns in another store: what it still takes in is lost, or in
        nobody's history, so that it has to go before its successor is there."""
        release = parsed(label)
        return release is not None and release.store != self.store


def parsed(label: str) -> Release | None:
    """The inverse of `Release.label`; None for what is none."""
    settings, *others = label.split("/")
    if len(others) != 4 or not others[2].isdigit():
        return None
    code, weights, restart, store = others
    return Release(settings, code, weights, int(restart), store)


def release_of(config: RemoraConfig) -> Release:
    """What workers that are started now are made of. Reads this program's sources, and samples of the weights."""
    return Release(worker_digest(config), code_digest(), weights_of(config), store=store_digest(config))


def weights_of(config: RemoraConfig) -> str:
    """The version of the weights as they are on this node; empty if they are not here. Nothing is fetched."""
    if config.workers.runner == "toy":
        return toy_weights(config.workers.toy_weights)[0]
    from actors.runner.torch.fingerprint import fingerprint

    try:
        folder = find(config.model.id, config.model.cache_dir)
        return "" if folder is None else fingerprint(folder)
    except OSError as error:
        logger.warning("the weights cannot be read here, so that a change of them is not noticed: %s", error)
        return ""


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Of this program's sources, as they were when this process first asked."""
    return digest_of_sources(code_root())


def digest_of_sources(root: Path) -> str:
    """Of all that a worker runs on in the packages below `root`: names and contents."""
    digest = hashlib.blake2b(digest_size=8)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in _SOURCES and path.is_file():
                digest.update(f"\0{path.relative_to(root).as_posix()}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
