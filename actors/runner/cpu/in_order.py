"""Work that is done in the order it was asked for, by whoever waits for some of it.

An executor's thread would have to be woken for each step, and to wake the loop after it: the loop, which has nothing
to do but wait, computes the step itself. The thread that copies pages does what was asked for before its copy, too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class _Job(Future[T]):
    """Done when somebody waits for it, or for a later one."""

    def __init__(self, do_up_to: Callable[[Future[T]], None], work: Callable[[], T]) -> None:
        super().__init__()
        self._do_up_to, self._work = do_up_to, work

    def result(self, timeout: float | None = None) -> T:
        self._do_up_to(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._do_up_to(self)
        return super().exception(timeout)

    def do(self) -> None:
        if not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(self._work())
        except BaseException as error:
            self.set_exception(error)


class InOrder(Executor):
    """Implements `Executor` without a thread. What nobody waits for is done with what comes after it, or at the end."""

    def __init__(self) -> None:
        self._jobs: deque[_Job[Any]] = deque()
        self._doing = threading.Lock()
        self._over = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Raises RuntimeError after `shutdown`."""
        if self._over:
            raise RuntimeError("nothing is done after shutdown")
        job = _Job(self._up_to, lambda: fn(*args, **kwargs))
        self._jobs.append(job)
        return job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does what is left. `wait` and `cancel_futures` say nothing here."""
        self._over = True
        with self._doing:
            while self._jobs:
                self._jobs.popleft().do()

    def _up_to(self, job: Future[Any]) -> None:
        with self._doing:
            while not job.done():
                self._jobs.popleft().do()
