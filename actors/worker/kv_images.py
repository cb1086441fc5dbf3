"""Images of sessions' KV outside the cache: in memory while there is room, then in files, then gone (rule K7).

An image is a list of pieces in page order: first those in files, then those in memory. Whichever session was used
longest ago gives way. A piece that turns out damaged ends its image there.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from actors.worker.kv_figures import KVFigures
from actors.worker.kv_files import HEADER_BYTES, Damaged, KVFile, KVFiles

logger = logging.getLogger("remora.worker")


@dataclass(slots=True, eq=False)
class _Piece:
    """Some pages: `data`, or a file, which may hold more pages than are the image's still."""

    pages: int
    data: bytes = b""
    file: KVFile | None = None


@dataclass(slots=True, eq=False)
class _Image:
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def pages(self) -> int:
        return sum(piece.pages for piece in self.pieces)

    @property
    def in_memory(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].file is None

    @property
    def in_files(self) -> bool:
        return bool(self.pieces) and self.pieces[0].file is not None


class KVImages:
    """Called from one thread; `figures` may be read from any.

    `piece_pages`: no piece is larger. `files` is None where there is no budget for them. `lost(session, pages)` is told
    when an image other than the one that is asked for has only so many pages left.
    """

    def __init__(
        self,
        *,
        page_bytes: int,
        piece_pages: int,
        host_bytes: int,
        disk_bytes: int,
        files: KVFiles | None,
        lost: Callable[[int, int], None],
    ) -> None:
        self._page_bytes = page_bytes
        self._piece_pages = piece_pages
        self._host_budget = host_bytes
        self._disk_budget = disk_bytes if files is not None else 0
        self._files = files
        self._lost = lost
        self._images: OrderedDict[int, _Image] = OrderedDict()
        """The least recently used first. None is empty between two calls."""
        self.figures = KVFigures()

    # -- asked for a session ---------------------------------------------------------------------------------------

    def pages(self, session: int) -> int:
        image = self._images.get(session)
        return image.pages if image else 0

    def next_piece(self, session: int) -> int:
        """How many pages to append at once, so that pieces become neither large nor many."""
        image = self._images.get(session)
        last = image.pieces[-1].pages if image else 0
        return self._piece_pages - last or self._piece_pages

    def append(self, session: int, data: bytes) -> int:
        """Add at most `next_piece` pages to the end of an image. Returns how many there was room for. 0 also if the
        image had to be written, and could not be, or turned out damaged; it is gone then, or shorter."""
        image = self._images.setdefault(session, _Image())
        self._images.move_to_end(session)
        before, straight = image.pages, 0
        self._free_memory(len(data), session)
        if self._over_memory(len(data)) and not image.in_memory and image.pages == before:
            straight = self._write_new(session, image, data)
        if self._images.get(session) is not image or image.pages != before + straight:
            return 0
        room = (self._host_budget - self.figures.host_bytes) // self._page_bytes
        self._hold(image, data[straight * self._page_bytes :][: room * self._page_bytes])
        self._forget_if_empty(session)
        return image.pages - before

    def truncate(self, session: int, pages: int) -> None:
        """Leave the first `pages`."""
        image = self._images.get(session)
        if image is not None:
            self._cut(image, pages)
            self._forget_if_empty(session)

    def read(self, session: int, first: int, count: int) -> Generator[bytes, None, None]:
        """The pages `first`, … `first + count - 1`, in order, some at a time. Ends early where the image does, or where
        a piece is damaged, which is then the end of the image. Nothing else may be asked meanwhile."""
        image = self._images.get(session)
        if image is None:
            return
        self._images.move_to_end(session)
        start, end, size = 0, first + count, self._page_bytes
        for piece in list(image.pieces):
            pages = piece.pages
            skip, stop = max(0, first - start), min(pages, end - start)
            if skip < stop:
                data = self._data(session, piece)
                if data is None:
                    self._shrink(session, start, session)
                    return
                yield data[skip * size : stop * size]
            start += pages

    def drop(self, session: int) -> None:
        """Forget an image."""
        image = self._images.pop(session, None)
        if image is not None:
            self._cut(image, 0)
            self.figures.images = len(self._images)

    def clear(self) -> None:
        for session in list(self._images):
            self.drop(session)

    # -- room ------------------------------------------------------------------------------------------------------

    def _over_memory(self, more: int) -> bool:
        return self.figures.host_bytes + more > self._host_budget

    def _free_memory(self, size: int, user: int) -> None:
        """Move images to files until `size` bytes more fit in memory: the user's own last, and only as far as it fits
        there, while others are cut."""
        for session in list(self._images):
            if not self._over_memory(size):
                return
            image = self._images.get(session)
            if image is None or not image.in_memory:
                continue
            while image.in_memory and self._move_next(session, image, user):
                pass
            if session != user and image.in_memory:
                self._lose(session, sum(piece.pages for piece in image.pieces if piece.file is not None))

    def _move_next(self, session: int, image: _Image, user: int) -> bool:
        """Move the first piece that is in memory to a file."""
        index = next(i for i, piece in enumerate(image.pieces) if piece.file is None)
        return self._write_at(session, image, index, image.pieces[index].data, user)

    def _write_new(self, session: int, image: _Image, data: bytes) -> int:
        """Put pages that memory has no room for straight into a file. Returns how many."""
        size = min(len(data), self._whole_pages(self._disk_budget - HEADER_BYTES))
        if size and not self._free_disk(HEADER_BYTES + size, session):
            size = self._whole_pages(self._disk_budget - self.figures.disk_bytes - HEADER_BYTES)
        if size and self._write_at(session, image, len(image.pieces), data[:size], session):
            return size // self._page_bytes
        return 0

    def _whole_pages(self, size: int) -> int:
        return max(0, size) // self._page_bytes * self._page_bytes

    def _write_at(self, session: int, image: _Image, index: int, data: bytes, user: int) -> bool:
        """Have pages in a file, as piece `index` of an image in place of what is there; together with those of the file
        before it if that is short. False if there is no room, or no way to write: then the image is lost."""
        end, pages = index + 1, len(data) // self._page_bytes
        last = image.pieces[index - 1] if index else None
        if last is not None and last.pages + pages > self._piece_pages:
            last = None
        joined_bytes = len(data) + (last.pages if last else 0) * self._page_bytes
        if last is not None and self._free_disk(HEADER_BYTES + joined_bytes, session):
            before = self._data(session, last)
            if before is None:
                self._shrink(session, sum(piece.pages for piece in image.pieces[: index - 1]), user)
                return False
            index, data = index - 1, before + data
        elif not self._free_disk(HEADER_BYTES + len(data), session):
            return False
        file = self._written(session, data, user)
        if file is None:
            return False
        old = image.pieces[index:end]
        image.pieces[index:end] = [self._counted(_Piece(len(data) // self._page_bytes, file=file))]
        for piece in old:
            self._discard(piece)
        return True

    def _free_disk(self, size: int, session: int) -> bool:
        """Make room for `size` bytes of `session` by forgetting whatever was used before it."""
        if size > self._disk_budget:
            return False
        for other in list(self._images):
            if self.figures.disk_bytes + size <= self._disk_budget:
                return True
            if other == session:
                break
            if self._images[other].in_files:
                self._lose(other, 0)
        return self.figures.disk_bytes + size <= self._disk_budget

    def _written(self, session: int, data: bytes, user: int) -> KVFile | None:
        if self._files is None:
            return None
        try:
            return self._files.write(data)
        except OSError as error:
            self.figures.failed_writes += 1
            logger.error("KV of a session cannot be written, and is forgotten: %s", error)
            self._shrink(session, 0, user)
            return None

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _hold(self, image: _Image, data: bytes) -> None:
        """Keep pages in memory, in one piece with those before them if that does not get too large."""
        if not data:
            return
        pages = len(data) // self._page_bytes
        if image.in_memory and image.pieces[-1].pages + pages <= self._piece_pages:
            last = image.pieces.pop()
            self._discard(last)
            data, pages = last.data + data, last.pages + pages
        image.pieces.append(self._counted(_Piece(pages, data)))

    def _data(self, session: int, piece: _Piece) -> bytes | None:
        """None for a damaged file."""
        if piece.file is None or self._files is None:
            return piece.data
        try:
            return self._files.read(piece.file)[: piece.pages * self._page_bytes]
        except Damaged as error:
            self.figures.failed_reads += 1
            logger.error("the file with pages of session %d is of no use: %s", session, error)
            return None

    def _cut(self, image: _Image, pages: int) -> None:
        """Leave the first `pages` of an image."""
        left = image.pages
        while left > pages:
            piece = image.pieces.pop()
            self._discard(piece, keep_file=left - piece.pages < pages)
            left -= piece.pages
            if left < pages:
                kept = pages - left
                data = piece.data[: kept * self._page_bytes]
                image.pieces.append(self._counted(_Piece(kept, data, piece.file)))
                left = pages

    def _counted(self, piece: _Piece) -> _Piece:
        self.figures.count(piece.pages, len(piece.data), piece.file.stored_bytes if piece.file else 0, 1)
        self.figures.images = len(self._images)
        return piece

    def _discard(self, piece: _Piece, *, keep_file: bool = False) -> None:
        self.figures.count(piece.pages, len(piece.data), piece.file.stored_bytes if piece.file else 0, -1)
        if piece.file is not None and self._files is not None and not keep_file:
            self._files.delete(piece.file)

    # -- losses ----------------------------------------------------------------------------------------------------

    def _shrink(self, session: int, pages: int, user: int) -> None:
        """Cut an image; its owner is told, unless it will be by the answer to what it has asked."""
        if session == user:
            self.figures.lost_pages += self.pages(session) - pages
            self._cut(self._images[session], pages)
            self._forget_if_empty(session)
        else:
            self._lose(session, pages)

    def _lose(self, session: int, pages: int) -> None:
        image = self._images[session]
        self.figures.lost_pages += image.pages - pages
        self._cut(image, pages)
        self._forget_if_empty(session)
        self._lost(session, pages)

    def _forget_if_empty(self, session: int) -> None:
        image = self._images.get(session)
        if image is not None and not image.pieces:
            del self._images[session]
        self.figures.images = len(self._images)
