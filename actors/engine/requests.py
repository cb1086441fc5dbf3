"""All requests of one worker, and which queue each is in."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from actors.engine.request import Order, Request, RequestState, scope_of
from actors.messages import Submit


class RequestTable:
    """Lookups by uid, attempt key and rid; the waiting queue and the batch, both in `Request.order`.

    A request leaves `find_rid` when its terminal event is out, and the table when its pages are back.
    """

    def __init__(self) -> None:
        self._by_uid: dict[int, Request] = {}
        self._by_key: dict[str, Request] = {}
        self._live_of: Counter[str] = Counter()
        self._by_rid: dict[tuple[str, str], list[Request]] = {}
        self._waiting: list[Request] = []
        self._waiting_since: dict[int, float] = {}
        """When those in the queue arrived, in the order in which they came into it."""
        self._running: list[Request] = []
        self._compiling: set[int] = set()
        self._waking: set[int] = set()

    def __len__(self) -> int:
        return len(self._by_uid)

    def add(self, request: Request) -> None:
        self._by_uid[request.uid] = request
        self._by_key[request.submit.key] = request
        self._live_of[request.submit.ingress] += 1
        for name in request.names:
            self._by_rid.setdefault(name, []).append(request)

    def by_uid(self, uid: int) -> Request | None:
        return self._by_uid.get(uid)

    def by_key(self, key: str) -> Request | None:
        return self._by_key.get(key)

    def by_rid(self, tenant: str, rid: str) -> list[Request]:
        """A rid names a turn within its session, or a stateless request: several may have the same (rule T2). What
        belongs to a batch of that name is among them."""
        return list(self._by_rid.get((tenant, rid), ()))

    def named(self, submit: Submit) -> list[Request]:
        """Live requests of that name in the same session, or among the stateless ones, oldest first: one, and perhaps
        another that is about to be refused. What was sent to a former owner or opening of a session is not of it."""
        scope = scope_of(submit)
        alike = self._by_rid.get((submit.tenant, submit.rid), ())
        return [other for other in alike if other.submit.rid == submit.rid and other.scope == scope]

    @property
    def num_live(self) -> int:
        """Attempts whose end is still to come."""
        return len(self._by_key)

    @property
    def live_of(self) -> dict[str, int]:
        """The same by ingress."""
        return dict(self._live_of)

    def live(self) -> list[Request]:
        return [request for key, request in self._by_key.items() if request.submit.key == key]

    def all(self) -> list[Request]:
        return list(self._by_uid.values())

    # -- followers -------------------------------------------------------------------------------------------------

    def follow(self, key: str, ingress: str, leader: Request) -> None:
        """Another attempt, of this ingress, is told what this request does."""
        self._by_key[key] = leader
        self._live_of[ingress] += 1

    def unfollow(self, key: str, ingress: str) -> None:
        """An attempt is over, and the request goes on for others."""
        del self._by_key[key]
        self._over(ingress)

    # -- queues ----------------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_compiling(self) -> int:
        """Requests whose grammar is being compiled. They count as waiting wherever waiting is limited."""
        return len(self._compiling)

    @property
    def num_waking(self) -> int:
        """Requests whose session's hibernated KV is being read. They count as waiting, too."""
        return len(self._waking)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def oldest_arrival(self) -> float | None:
        """When the one that is longest in the queue arrived."""
        return next(iter(self._waiting_since.values()), None)

    def waiting(self) -> list[Request]:
        return list(self._waiting)

    def nth_waiting(self, place: int) -> Request | None:
        """Who is at this place of the queue, from 0; None beyond its end."""
        return self._waiting[place] if place < len(self._waiting) else None

    def running(self) -> list[Request]:
        return list(self._running)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.all())

    def compiling(self, request: Request) -> None:
        self._compiling.add(request.uid)

    def is_compiling(self, request: Request) -> bool:
        return request.uid in self._compiling

    def compiled(self, request: Request) -> None:
        self._compiling.remove(request.uid)

    def wake(self, request: Request) -> None:
        """Out of the waiting queue until `woken`."""
        self._leave_queue(request)
        self._waking.add(request.uid)

    def is_waking(self, request: Request) -> bool:
        return request.uid in self._waking

    def woken(self, request: Request) -> None:
        self._waking.remove(request.uid)

    def enqueue(self, request: Request) -> None:
        insort(self._waiting, request, key=_order)
        self._waiting_since[request.uid] = request.arrived_at

    def start(self, request: Request) -> None:
        self._leave_queue(request)
        insort(self._running, request, key=_order)

    def requeue(self, request: Request) -> None:
        self._leave_batch(request)
        self.enqueue(request)

    def leave_queues(self, request: Request) -> None:
        """Take a request out of the queue its state says it is in."""
        if request.state is RequestState.WAITING_GRAMMAR:
            self.compiled(request)
        elif request.state is RequestState.WAITING_KV:
            self.woken(request)
        elif request.state is RequestState.WAITING:
            self._leave_queue(request)
        elif request.state in (RequestState.PREFILL, RequestState.DECODE):
            self._leave_batch(request)

    def answered(self, request: Request) -> None:
        """Its terminal event is out: its names can be used again."""
        for key, ingress in request.attempts:
            if self._by_key.get(key) is request:
                del self._by_key[key]
                self._over(ingress)
        for name in request.names:
            named = self._by_rid[name]
            named.remove(request)
            if not named:
                del self._by_rid[name]

    def forget(self, request: Request) -> None:
        """Its pages are back: nothing is left of it."""
        del self._by_uid[request.uid]

    def _over(self, ingress: str) -> None:
        self._live_of[ingress] -= 1
        if not self._live_of[ingress]:
            del self._live_of[ingress]

    def _leave_queue(self, request: Request) -> None:
        del self._waiting[_place(self._waiting, request)]
        del self._waiting_since[request.uid]

    def _leave_batch(self, request: Request) -> None:
        del self._running[_place(self._running, request)]


def _order(request: Request) -> Order:
    return request.order


def _place(queue: list[Request], request: Request) -> int:
    index = bisect_left(queue, request.order, key=_order)
    if index == len(queue) or queue[index] is not request:
        raise AssertionError(f"request {request.submit.rid!r} is not in the queue its state says")
    return index
