"""Copies KV out of the cache and back, off the loop, and mails the results (rule K7).

One thread copies, a few pages at a time: no step runs while the runner copies, so that each copy makes a decode wait.
Copies into the cache go first, since somebody waits for them; what is dropped is not copied any further.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from actors.engine.effects import DropKV, KVLoaded, KVLost, KVSaved, LoadKV, PackKV, SaveKV, UnpackKV
from actors.runner.base import ModelRunner
from actors.worker.kv_files import KVFiles
from actors.worker.kv_folder import KVFolder
from actors.worker.kv_images import KVImages
from actors.worker.kv_parcels import Parcel, Parcels
from configs import HibernateConfig

logger = logging.getLogger("remora.worker")

MAX_PIECE_BYTES = 8 * 2**20
"""What is copied at once, unless a single page is larger: 1 ms on a CPU."""
MAX_PIECE_PAGES = 32

KVResult = KVSaved | KVLoaded | KVLost
KVEffect = SaveKV | LoadKV | DropKV | PackKV | UnpackKV


@dataclass(slots=True, eq=False)
class _Job:
    """`over`: its session's image is dropped, or the worker closes; nobody wants its pages any more."""

    effect: KVEffect
    over: bool = False


class KVEffects:
    """`perform` is called by the loop and never blocks; to each SaveKV, LoadKV and UnpackKV one answer comes by `mail`.
    `parcels` may be used from any thread.

    Raises OSError when files are wanted and their folder cannot be used.
    """

    def __init__(self, runner: ModelRunner, config: HibernateConfig, mail: Callable[[KVResult], None]) -> None:
        self._runner = runner
        self._mail = mail
        self.parcels = Parcels()
        self._files: KVFiles | None = None
        page_bytes = max(1, runner.info.page_bytes)
        if config.disk_bytes and runner.info.page_bytes:
            self._files = KVFiles(KVFolder(config.directory), runner.info.kv_format)
        self._images = KVImages(
            page_bytes=page_bytes,
            piece_pages=max(1, min(MAX_PIECE_PAGES, MAX_PIECE_BYTES // page_bytes)),
            host_bytes=config.host_bytes if runner.info.page_bytes else 0,
            disk_bytes=config.disk_bytes,
            files=self._files,
            lost=lambda session, pages: mail(KVLost(session=session, pages=pages)),
        )
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []
        self._current: _Job | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="remora-hibernate", daemon=True)
        self._thread.start()

    def perform(self, effect: KVEffect) -> None:
        dropped: list[_Job] = []
        with self._changed:
            if isinstance(effect, DropKV):
                dropped = self._give_up(effect.session)
                self._jobs.insert(0, _Job(effect))
            else:
                self._jobs.append(_Job(effect))
            self._changed.notify()
        for job in dropped:
            self._answer(job, 0)

    def stats(self) -> dict[str, int]:
        """What is held, what was done, and how many copies wait for others."""
        return {**self._images.figures.row(), "queued_copies": len(self._jobs)}

    def close(self) -> None:
        """Copy no further, answer what was asked, end the thread, and remove the files. Twice is once."""
        with self._changed:
            self._closing = True
            for job in [*self._jobs, *([self._current] if self._current else [])]:
                job.over = True
            self._changed.notify()
        self._thread.join()
        files, self._files = self._files, None
        if files is not None:
            files.close()

    # -- the queue, with its lock held -----------------------------------------------------------------------------

    def _give_up(self, session: int) -> list[_Job]:
        """Take back what was asked for a session; the copy under way ends with its next piece."""
        dropped = [job for job in self._jobs if job.effect.session == session and not isinstance(job.effect, DropKV)]
        self._jobs = [job for job in self._jobs if job not in dropped]
        if self._current is not None and self._current.effect.session == session:
            self._current.over = True
        return dropped

    def _next(self) -> _Job:
        """Drops are in front; then whatever a session needs that waits for its KV; then the oldest."""
        chosen = self._jobs[0]
        if not isinstance(chosen.effect, DropKV):
            for job in self._jobs:
                if isinstance(job.effect, LoadKV):
                    session = job.effect.session
                    chosen = next(each for each in self._jobs if each.effect.session == session)
                    break
        self._jobs.remove(chosen)
        return chosen

    # -- on the copying thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._current = None
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    break
                job = self._current = self._next()
            self._answer(job, self._done(job))
        self._images.clear()

    def _done(self, job: _Job) -> int:
        """Pages that a save or a load came to, whatever happens: the loop waits for that."""
        effect = job.effect
        try:
            if isinstance(effect, DropKV) or job.over:
                self._images.drop(effect.session)
                return 0
            if isinstance(effect, SaveKV):
                return self._save(job, effect)
            if isinstance(effect, PackKV):
                return self._pack(effect)
            if isinstance(effect, UnpackKV):
                return self._unpack(job, effect)
            return self._load(job, effect)
        except Exception:
            # Whatever it was: an image of which less is known than there should be is not kept.
            logger.exception("KV of session %d cannot be copied", effect.session)
            self._images.figures.failed_copies += 1
            self._images.drop(effect.session)
            return 0

    def _save(self, job: _Job, effect: SaveKV) -> int:
        """How many pages the image has afterwards."""
        images, session = self._images, effect.session
        if effect.first > images.pages(session):
            return images.pages(session)
        images.truncate(session, effect.first)
        left = effect.pages
        while left and not job.over:
            now, left = left[: (count := images.next_piece(session))], left[count:]
            kept = images.append(session, self._runner.read_pages(now).wait())
            images.figures.saved_pages += kept
            if kept < len(now):
                break
        return 0 if job.over else images.pages(session)

    def _pack(self, effect: PackKV) -> int:
        """As much of the image as can be read: the rest costs a prefill where it is wanted."""
        images, session = self._images, effect.session
        with contextlib.closing(images.read(session, 0, images.pages(session))) as pieces:
            parcel = Parcel(self._runner.info.kv_format, tuple(pieces))
        images.drop(session)
        self.parcels.put(effect.parcel, parcel)
        return 0

    def _unpack(self, job: _Job, effect: UnpackKV) -> int:
        """How many pages the image has afterwards: none of a parcel of another model."""
        parcel, images, session = self.parcels.take(effect.parcel), self._images, effect.session
        if parcel is None or not session or parcel.kv_format != self._runner.info.kv_format:
            return 0
        page_bytes = self._runner.info.page_bytes
        for piece in parcel.pieces:
            left = piece
            while left and not job.over:
                size = images.next_piece(session) * page_bytes
                now, left = left[:size], left[size:]
                if images.append(session, now) * page_bytes < len(now):
                    return images.pages(session)
        return 0 if job.over else images.pages(session)

    def _load(self, job: _Job, effect: LoadKV) -> int:
        """How many of the pages asked for came back."""
        images, loaded, page_bytes = self._images, 0, self._runner.info.page_bytes
        with contextlib.closing(images.read(effect.session, effect.first, len(effect.pages))) as pieces:
            for data in pieces:
                if job.over:
                    return 0
                now = effect.pages[loaded : loaded + len(data) // page_bytes]
                self._runner.write_pages(now, data).wait()
                loaded += len(now)
                images.figures.loaded_pages += len(now)
        return loaded

    def _answer(self, job: _Job, pages: int) -> None:
        if isinstance(job.effect, SaveKV) or (isinstance(job.effect, UnpackKV) and job.effect.session):
            self._mail(KVSaved(session=job.effect.session, pages=pages))
        elif isinstance(job.effect, LoadKV):
            self._mail(KVLoaded(session=job.effect.session, pages=pages))
