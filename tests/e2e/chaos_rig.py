"""A real Ray cluster of several nodes on this machine with the product on it, and hands on all of its processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import environment
from tests.e2e.census import descendants
from tests.e2e.far_node import FarNode
from tests.e2e.netns import NEAR, TwoNetworks
from tests.e2e.server import Server, running

_MARK = "REMORA_CHAOS"
"""In the environment of all processes of a run: the id of the process that runs it."""
TITLES = {
    "worker": "ray::WorkerActor",
    "ingress": "ray::ServeReplica:remora:ingress",
    "pool": "ray::ServeReplica:remora:pool",
    "store": "ray::StoreService",
    "proxy": "ray::ProxyActor",
    "controller": "ray::ServeController",
}
NODE: dict[str, Any] = {"object_store_memory": 100 * 2**20}
IMPATIENT_RAY = {
    "health_check_initial_delay_ms": 2000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 5,
}
"""So that the death of a node, which only silence tells, is known within seconds: by default it takes Ray a minute."""
SCALE_S = 10.0


class Rig:
    """`nodes`: the raylets that may be killed. The head, which has pool and store, is none of them, and neither is the
    node on the far side of the `networks`, if there are two of these."""

    def __init__(
        self,
        cluster: Any,
        nodes: list[Any],
        server: Server,
        *,
        node: Mapping[str, Any] = NODE,
        networks: TwoNetworks | None = None,
        far_node: FarNode | None = None,
    ) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self.server = server
        self._node = node
        self._networks = networks
        self._far_node = far_node
        # Off the main thread, which clients need, Ray cannot set its signal handlers; and its processes end with the
        # thread that started them.
        cluster._shutdown_at_exit = False
        self._adder = ThreadPoolExecutor(1)

    @property
    def is_parted(self) -> bool:
        """Whether there is a far side."""
        return self._networks is not None

    @property
    def networks(self) -> TwoNetworks:
        assert self._networks is not None
        return self._networks

    @property
    def far_node(self) -> FarNode:
        assert self._far_node is not None
        return self._far_node

    def is_far(self, pid: int) -> bool:
        """False also when it has ended."""
        return self.is_parted and self.networks.is_far(pid)

    def pids(self, what: str) -> list[int]:
        """Living processes of a kind (see `TITLES`), oldest first."""
        return [pid for pid in descendants(1) if _title(pid).startswith(TITLES[what]) and self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        """A cluster's processes carry its address, whoever is their parent by now."""
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return _MARK.encode() + b"=" + str(os.getpid()).encode() in words.split(b"\0")

    def scale(self, count: int) -> None:
        """Have the pool want so many workers. Blocks; raises what Serve does while the pool cannot be reached."""
        from ray import serve

        handle: Any = serve.get_deployment_handle("pool", "remora")
        handle.reconfigure.remote({"workers": count}).result(timeout_s=SCALE_S)

    def kill_node(self, index: int) -> None:
        self.cluster.remove_node(self.nodes.pop(index), allow_graceful=False)

    def add_node(self) -> None:
        """Blocks for seconds. Raises whatever Ray does when the node does not come up in time."""
        self.nodes.append(self._adder.submit(self.cluster.add_node, wait=False, **self._node).result())

    def thaw(self) -> None:
        """Nobody is left frozen."""
        for what in ("worker", "ingress", "pool"):
            for pid in self.pids(what):
                send(pid, signal.SIGCONT)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def send(pid: int, number: int) -> bool:
    """Whether there was somebody to get the signal."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def rigged(
    folder: Path,
    config: dict[str, Any],
    nodes: int,
    *,
    networks: TwoNetworks | None = None,
    head_cpus: int = 0,
    node_cpus: int = 2,
    far_cpus: int = 2,
    ray_settings: Mapping[str, Any] = IMPATIENT_RAY,
) -> Iterator[Rig]:
    """A cluster of a head and so many nodes, with the server up on it, and then a node on the far side, if there is
    one. This process is a driver on it, too."""
    os.environ[_MARK] = str(os.getpid())
    environment.prepare()
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    node = {**NODE, "num_cpus": node_cpus, **({"node_ip_address": NEAR} if networks else {})}
    head = {**node, "num_cpus": head_cpus, "include_dashboard": False, "_system_config": dict(ray_settings)}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    far_node: FarNode | None = None
    try:
        raylets = [cluster.add_node(**node) for _ in range(nodes)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        with running(folder, config, RAY_ADDRESS=cluster.address) as server:
            if networks is not None:
                far_node = FarNode(networks, cluster.address, folder / "far-node.log", num_cpus=far_cpus)
            yield Rig(cluster, raylets, server, node=node, networks=networks, far_node=far_node)
    finally:
        serve.context._set_global_client(None)  # Else it would be asked about the next cluster of this process.
        ray.shutdown()
        if far_node is not None:
            far_node.close()
        cluster.shutdown()
        del os.environ[_MARK]
