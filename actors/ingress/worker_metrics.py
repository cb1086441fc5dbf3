"""What the workers say of hibernation (rule K7) and of their queues, for Prometheus.

Every ingress shows the same, since it asks all workers: take the maximum over ingresses, not the sum. Series go with
their worker, so that their number has a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Row = Mapping[str, Any]


def exposition(rows: Iterable[Row] | None) -> bytes:
    """`rows`: the workers' part of /v1/stats; None if nobody could say."""
    registry = CollectorRegistry()
    registry.register(_Workers(rows))
    return generate_latest(registry)


class _Workers(Collector):
    def __init__(self, rows: Iterable[Row] | None) -> None:
        self._known = rows is not None
        self._rows = [(str(row["id"]), row["hibernate"]) for row in rows or () if "hibernate" in row]
        self._queues = [(str(row["id"]), row["queue_time"]) for row in rows or () if "queue_time" in row]

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "remora_worker_figures_up", "Whether the pool told the workers' figures.", value=float(self._known)
        )
        yield self._gauge("remora_hibernated_sessions", "Sessions with KV outside the cache.", {"": "images"})
        where = {"host": "host_pages", "disk": "disk_pages"}
        yield self._gauge("remora_hibernated_pages", "KV pages kept outside the cache.", where)
        where = {"host": "host_bytes", "disk": "disk_bytes"}
        yield self._gauge("remora_hibernated_bytes", "Bytes of KV kept outside the cache.", where)
        yield self._gauge("remora_hibernation_queued_copies", "Copies that wait.", {"": "queued_copies"})
        kinds = {kind: f"{kind}_pages" for kind in ("saved", "loaded", "lost", "missed")}
        yield self._counter("remora_hibernation_pages", "KV pages copied out, copied back, given up, missed.", kinds)
        kinds = {"read": "failed_reads", "write": "failed_writes", "copy": "failed_copies"}
        yield self._counter("remora_hibernation_failures", "Damaged files, failed writes, failed copies.", kinds)
        yield self._counter("remora_hibernation_woken_turns", "Turns whose KV came back.", {"": "woken_turns"})
        yield self._queue_times()

    def _queue_times(self) -> Metric:
        family = HistogramMetricFamily(
            "remora_queue_time_seconds", "From a worker's receipt of a request to its first step.", labels=["worker"]
        )
        for worker, times in self._queues:
            family.add_metric([worker], list(times["at_most"].items()), times["sum_s"])
        return family

    def _gauge(self, name: str, text: str, fields: Mapping[str, str]) -> Metric:
        return self._filled(GaugeMetricFamily(name, text, labels=_labels(fields, "where")), fields)

    def _counter(self, name: str, text: str, fields: Mapping[str, str]) -> Metric:
        return self._filled(CounterMetricFamily(name, text, labels=_labels(fields, "kind")), fields)

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, fields: Mapping[str, str]
    ) -> GaugeMetricFamily | CounterMetricFamily:
        for worker, figures in self._rows:
            for label, field in fields.items():
                if field in figures:  # A worker of an older version may still run.
                    family.add_metric([worker, label] if label else [worker], float(figures[field]))
        return family


def _labels(fields: Mapping[str, str], name: str) -> list[str]:
    return ["worker"] if "" in fields else ["worker", name]
