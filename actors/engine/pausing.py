"""Standing still by order: `Pause` and `Resume`.

While the engine is paused nothing is planned, and all else goes on: what comes in waits, aborts and clocks end what
they end (rule C1: whoever gave a time has given it, whatever it is spent on), sessions open, close and expire.
"""

from __future__ import annotations

from actors.engine.aborts import Aborts
from actors.engine.core import Core
from actors.engine.preemption import Preemption
from actors.messages import Pause, PauseMode, Reason, Reply, Resume


class Pausing:
    def __init__(self, core: Core, aborts: Aborts, preemption: Preemption) -> None:
        self._core = core
        self._aborts = aborts
        self._preemption = preemption
        self._asks: list[int] = []

    def pause(self, message: Pause, now: float) -> None:
        """Plan nothing more. `settle` answers."""
        self._core.paused = True
        self._asks.append(message.ask)
        if message.mode is PauseMode.ABORT:
            self._aborts.abort_everything(Reason.CLIENT_ABORT, now)
        elif message.mode is PauseMode.RETRACT:
            for request in self._core.requests.running():
                self._preemption.want_out(request)

    def resume(self, message: Resume) -> None:
        """Also answers those who still wait for the pause to be complete."""
        self._core.paused = False
        self._answer()
        self._core.out.append(Reply(ask=message.ask, value=self._core.requests.num_live))

    def settle(self, uncommitted: int, now: float) -> None:
        """Requests that no step under way names give back what they are to give back; once no step is, it is said."""
        if not self._core.paused:
            return
        self._preemption.leave(now)
        if not uncommitted:
            self._answer()

    def _answer(self) -> None:
        asks, self._asks = self._asks, []
        self._core.out += [Reply(ask=ask, value=self._core.requests.num_live) for ask in asks]
