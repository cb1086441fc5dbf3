"""The verbs of scenario files, one handler each; its docstring is its usage."""

from __future__ import annotations

from typing import Any

from actors.engine.request import RequestState
from actors.messages import Grammar, GrammarKind, OnBusy, SessionMode
from actors.records import SessionExists, SessionUnknown
from tests.sim.audit import reference
from tests.sim.cluster import SimCluster, prompt_of
from tests.sim.script import Command, Scenario, verb

# -- the cluster -------------------------------------------------------------------------------------------------------


@verb
def cluster(scenario: Scenario, command: Command) -> None:
    """cluster [workers=2] [ingresses=1] [seed=0] [step_s=0.01] [patience_s=2] [hibernate_below=SHARE]
    [any whole-number field of EngineSettings]"""
    fractions = {name: command.take(name, float) for name in ("step_s", "hibernate_below") if name in command.options}
    options = {name: int(command.options.pop(name)) for name in list(command.options)}
    scenario.cluster = SimCluster(**fractions, **options)
    scenario.sim.run(0.3)


@verb
def run(scenario: Scenario, command: Command) -> None:
    """run SECONDS"""
    scenario.sim.run(float(command.words[0]))


@verb
def settle(scenario: Scenario, command: Command) -> None:
    """settle: until every call has ended and nothing moves"""
    scenario.sim.settle()


@verb
def until(scenario: Scenario, command: Command) -> None:
    """until CALL tokens=N | until CALL worker=NAME | until CALL waking: what a client has seen, where its call has
    arrived, or that its session's KV is being read"""
    call = scenario.sim.calls[command.words[0]]
    tokens, worker = command.take("tokens", int), command.take("worker", str)
    for _ in range(100_000):
        there = worker and scenario.sim.workers[worker].engine.core.requests.by_key(call.key) is not None
        if "waking" in command.words and call.worker:
            request = scenario.sim.workers[call.worker].engine.core.requests.by_key(call.key)
            there = request is not None and request.state is RequestState.WAITING_KV
        if there or (tokens is not None and len(call.ids) >= tokens):
            return
        scenario.sim.timeline.step()
    raise AssertionError(f"{call.name} never got so far")


# -- sessions and requests ---------------------------------------------------------------------------------------------


@verb
def open_(scenario: Scenario, command: Command) -> None:
    """open SESSION [mode=tree] [idle=SECONDS] [capacity=TOKENS]"""
    mode = SessionMode(command.take("mode", str, "streaming"))
    idle, capacity = command.take("idle", float), command.take("capacity", int)
    try:
        scenario.sim.open(command.words[0], mode, idle_s=idle, capacity=capacity)
    except SessionExists:
        scenario.say(f"pool: {command.words[0]} is open already")
    if command.take("wait", str, "yes") == "yes":
        scenario.sim.run(0.02)


@verb
def close(scenario: Scenario, command: Command) -> None:
    """close SESSION [abort]"""
    session_id, *how = command.words
    scenario.sim.close(session_id, abort="abort" in how)


@verb
def request(scenario: Scenario, command: Command) -> None:
    """request CALL prompt=N|like=CALL [max=N] [rid=NAME] [via=i1] [priority=N] [deadline=S] [waiting=S] [running=S]
    [tenant=NAME] [weight=N] [regex=TEXT]"""
    name = command.words[0]
    prompt = command.take("prompt", int, 4)
    like = command.take("like", str)
    sent: dict[str, Any] = scenario.sent[like] if like else {"prompt": prompt_of(name, prompt), "max_tokens": 5}
    sent = {**sent, "max_tokens": command.take("max", int, sent["max_tokens"])}
    scenario.sent[name] = sent
    fields: dict[str, Any] = {"rid": command.take("rid", str, name), "via": command.take("via", str, "i1")}
    for option, field_name in (("deadline", "deadline_s"), ("waiting", "waiting_timeout_s")):
        fields[field_name] = command.take(option, float)
    fields["running_timeout_s"] = command.take("running", float)
    fields["priority"] = command.take("priority", int, 0)
    fields |= {"tenant": command.take("tenant", str, "t"), "weight": command.take("weight", float, 0.0)}
    if "regex" in command.options:
        fields["grammar"] = Grammar(kind=GrammarKind.REGEX, text=command.take("regex", str))
    fields |= _turn_fields(command)
    scenario.sim.request(name, **sent, **fields)


@verb
def turn(scenario: Scenario, command: Command) -> None:
    """turn CALL session=ID [parent=RID|none] [replace] [drop] [create] [offset=N] [on_busy=queue|supersede]
    [what request takes]"""
    if "session" not in command.options:
        raise AssertionError("a turn names its session")
    request(scenario, command)


def _turn_fields(command: Command) -> dict[str, Any]:
    session_id = command.take("session", str)
    if session_id is None:
        return {}
    fields: dict[str, Any] = {"session_id": session_id, "on_busy": command.take("on_busy", OnBusy, OnBusy.REJECT)}
    if "parent" in command.options:
        parent = command.take("parent", str)
        fields["parent"] = None if parent == "none" else parent
    if "offset" in command.options:
        fields["offset"] = command.take("offset", int)
    flags = {"replace": "replace", "drop": "drop_previous_output", "create": "create"}
    return fields | {flags[word]: True for word in command.words[1:]}


@verb
def abort(scenario: Scenario, command: Command) -> None:
    """abort RID | abort session=ID | abort prefix=TEXT | abort all, each [via=i1]"""
    ingress = scenario.sim.ingresses[command.take("via", str, "i1")]
    if "session" in command.options:
        session_id = command.take("session", str)
        ingress.abort(f"session {session_id}", session_id=session_id)
    elif "prefix" in command.options:
        prefix = command.take("prefix", str)
        ingress.abort(f"{prefix}*", rid_prefix=prefix)
    elif command.words == ["all"]:
        ingress.abort("all", all=True)
    else:
        ingress.abort(command.words[0], rids=tuple(command.words))


@verb
def disconnect(scenario: Scenario, command: Command) -> None:
    """disconnect CALL [via=i1]: its client closes the socket"""
    scenario.sim.ingresses[command.take("via", str, "i1")].disconnect(command.words[0])


# -- misfortunes -------------------------------------------------------------------------------------------------------


@verb
def kill(scenario: Scenario, command: Command) -> None:
    """kill WORKER|INGRESS: SIGKILL"""
    name = command.words[0]
    if name in scenario.sim.ingresses:
        scenario.sim.ingresses[name].kill()
    else:
        scenario.sim.kill_worker(name)


@verb
def freeze(scenario: Scenario, command: Command) -> None:
    """freeze WORKER: SIGSTOP"""
    scenario.sim.workers[command.words[0]].freeze()


@verb
def thaw(scenario: Scenario, command: Command) -> None:
    """thaw WORKER: SIGCONT"""
    scenario.sim.workers[command.words[0]].thaw()


@verb
def next_(scenario: Scenario, command: Command) -> None:
    """next CLASS from=NAME to=NAME fate=lose|twice|SECONDS: what happens to the next message of this kind"""
    fate = command.take("fate", str)
    sender, receiver = command.take("from", str), command.take("to", str)
    scenario.sim.network.set_fate(
        sender, receiver, command.words[0], fate if fate in ("lose", "twice") else float(fate)
    )


@verb
def cut(scenario: Scenario, command: Command) -> None:
    """cut NAME NAME: nothing passes between them"""
    scenario.sim.partition(*command.words)


@verb
def mend(scenario: Scenario, command: Command) -> None:
    """mend NAME NAME"""
    scenario.sim.partition(*command.words, cut=False)


@verb
def store(scenario: Scenario, command: Command) -> None:
    """store slow=SECONDS | store fail=N | store ambiguous=N: the next N calls fail; ambiguous ones are done all the
    same"""
    slow = command.take("slow", float)
    for worker in scenario.sim.workers.values():
        worker.effects.store_delay_s = worker.effects.store_delay_s if slow is None else slow
    for fault in ("fail", "ambiguous"):
        scenario.sim.store.faults.extend([fault] * command.take(fault, int, 0))


# -- looking -----------------------------------------------------------------------------------------------------------


@verb
def history(scenario: Scenario, command: Command) -> None:
    """history SESSION: what the store has"""
    session_id = command.words[0]
    try:
        record = scenario.sim.store.get("t", session_id)
    except SessionUnknown:
        scenario.say(f"{session_id}: not open")
        return
    rids = ", ".join(scenario.sim.turns(session_id) or ["no turns"])
    scenario.say(f"{session_id}: {rids}; {record.tokens} tokens; {record.owner}, epoch {record.epoch}")


@verb
def pages(scenario: Scenario, command: Command) -> None:
    """pages WORKER: who has them, and how many requests there are"""
    stats = scenario.sim.workers[command.words[0]].engine.snapshot()
    counts = stats.pages
    scenario.say(
        f"{command.words[0]}: {counts.free} free, {counts.prefix_only} prefix, {counts.session_held} sessions, "
        f"{counts.request_owned} requests; {stats.running} running, {stats.waiting} waiting"
    )


@verb
def counts(scenario: Scenario, command: Command) -> None:
    """counts WORKER: preemptions, evicted slots and computed prompt tokens so far"""
    stats = scenario.sim.workers[command.words[0]].engine.snapshot()
    scenario.say(
        f"{command.words[0]}: {stats.preemptions} preemptions, {stats.evicted_slots} evicted slots, "
        f"{stats.prefill_tokens} prompt tokens computed"
    )


@verb
def same(scenario: Scenario, command: Command) -> None:
    """same CALL CALL: whether both were told the same tokens"""
    one, other = (scenario.sim.calls[name].ids for name in command.words)
    scenario.say(f"{command.words[0]} and {command.words[1]}: " + ("the same" if one == other else "not the same"))


@verb
def alone(scenario: Scenario, command: Command) -> None:
    """alone CALL: whether a plain request was told what its prompt gives on a fresh cluster"""
    call = scenario.sim.calls[command.words[0]]
    right = call.ids == reference(call.submit.input_ids, len(call.ids), call.submit.grammar)
    scenario.say(f"{call.name}: {len(call.ids)} tokens, " + ("as alone" if right else "not as alone"))
