"""More verbs of scenario files: forks, rollbacks, hibernated KV, grammars, workers that leave."""

from __future__ import annotations

from actors.records import SessionExists, SessionUnknown, TurnUnknown
from tests.sim.script import Command, Scenario, verb
from tests.sim.worker import SimWorker


@verb
def fork(scenario: Scenario, command: Command) -> None:
    """fork SESSION from=SESSION [turn=RID]"""
    source, turn = command.take("from", str), command.take("turn", str)
    try:
        scenario.sim.fork(command.words[0], source, turn)
    except (SessionExists, SessionUnknown, TurnUnknown) as error:
        scenario.say(f"pool: no fork of {source}: {type(error).__name__} {error}")
    scenario.sim.run(0.02)


@verb
def rollback(scenario: Scenario, command: Command) -> None:
    """rollback SESSION RID"""
    scenario.sim.rollback(*command.words)
    scenario.sim.run(0.02)


@verb
def kv(scenario: Scenario, command: Command) -> None:
    """kv slow=SECONDS | kv room=PAGES | kv harmed=PAGE | kv lost=SESSION [keep=PAGES]: how long copies of KV take,
    how many pages an image may have, which page of an image cannot be read, whose image is given up"""
    slow, room, harmed = command.take("slow", float), command.take("room", int), command.take("harmed", int)
    lost, keep = command.take("lost", str), command.take("keep", int, 0)
    for worker in scenario.sim.workers.values():
        effects = worker.effects
        effects.kv_delay_s = effects.kv_delay_s if slow is None else (slow, slow)
        effects.kv.room = effects.kv.room if room is None else room
        effects.kv.harmed = effects.kv.harmed if harmed is None else {harmed}
        session = worker.engine.core.sessions.find("t", lost) if lost else None
        if session is not None and session.uid in effects.kv.images:
            effects.lose_image(session.uid, keep)


@verb
def grammars(scenario: Scenario, command: Command) -> None:
    """grammars slow=SECONDS [timeouts=yes|no]: how long compiling takes, and whether it is given up then"""
    slow, timeouts = command.take("slow", float, 0.002), command.take("timeouts", str, "no")
    for worker in scenario.sim.workers.values():
        worker.effects.grammar_delay_s = (slow, slow)
        worker.effects.grammar_timeouts = 1.0 if timeouts == "yes" else 0.0


@verb
def drain(scenario: Scenario, command: Command) -> None:
    """drain WORKER [grace=SECONDS]: the pool lets it finish its turns for so long, then stops it"""
    scenario.sim.drain(command.words[0], command.take("grace", float, 5.0))


# -- looking -----------------------------------------------------------------------------------------------------------


@verb
def kept(scenario: Scenario, command: Command) -> None:
    """kept SESSION: what its worker has of its KV, in the cache and outside of it"""
    session_id = command.words[0]
    owner = scenario.sim.store.get("t", session_id).owner
    core = scenario.sim.workers[owner].engine.core
    session = core.sessions.find("t", session_id)
    if session is None:
        scenario.say(f"{session_id}: not known to {owner}")
        return
    image = core.images.get(session.uid)
    hibernated = len(image.keys) * core.kv.page_size if image else 0
    scenario.say(f"{session_id} on {owner}: {core.kv.slot_length(session.uid)} tokens here, {hibernated} hibernate")


@verb
def hibernation(scenario: Scenario, command: Command) -> None:
    """hibernation WORKER: what was copied so far, what was missing, and what is kept"""
    worker: SimWorker = scenario.sim.workers[command.words[0]]
    stats = worker.engine.snapshot()
    scenario.say(
        f"{command.words[0]}: {stats.images} images; {stats.saved_pages} pages saved, {stats.loaded_pages} loaded, "
        f"{stats.missed_pages} missed; {stats.woken_turns} turns woken"
    )
