"""Metrics for Prometheus, on prometheus-client.

Counters of hot paths stay plain integers of the objects that count: only the event loop writes them, so they need no
lock. They become samples when they are read (`Reading`), and so do the durations of tasks and requests (`Durations`).

Each server has a registry of its own (`new_registry`); none uses the library's global one, because several servers may
run in one process. Labels have few values: names of queues, handlers and routes, never paths, ids or texts.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dagmaster import __version__

EXPOSITION_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TASK_SECONDS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)

Labels = tuple[str, ...]
LabelValues = TypeVar("LabelValues", bound=Labels)  # a mapping is invariant in its keys


class Reading(Collector):
    """Calls a function at every scrape, and exposes the metrics that it returns."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return nothing: otherwise the registry would read the values when they are registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._read()


def new_registry(role: str, *readings: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """The metrics of one server: what these functions return, its process, and its version."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(Reading(lambda: _build_info(role)))
    for read in readings:
        registry.register(Reading(read))
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """The metrics as text, in the format of Prometheus."""
    return generate_latest(registry)


def counter(name: str, meaning: str, value: float) -> Metric:
    """A count that only grows while the process lives. Its name ends in `_total`."""
    return CounterMetricFamily(_unsuffixed(name), meaning, value=value)


def gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)


def counters(name: str, meaning: str, labels: Labels, samples: Mapping[LabelValues, float]) -> Metric:
    """A count for each combination of labels."""
    family = CounterMetricFamily(_unsuffixed(name), meaning, labels=labels)
    for values, value in samples.items():
        family.add_metric(values, value)
    return family


def gauges(name: str, meaning: str, labels: Labels, samples: Mapping[LabelValues, float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in samples.items():
        family.add_metric(values, value)
    return family


class Durations:
    """Durations of operations, as a histogram for each combination of labels. Only the event loop adds to it."""

    def __init__(self, name: str, meaning: str, labels: Labels, buckets: tuple[float, ...]) -> None:
        self._name, self._meaning, self._labels = name, meaning, labels
        self._bounds = buckets
        self._counts: dict[Labels, list[int]] = {}  # for each bucket, and one beyond the last bound
        self._sums: dict[Labels, float] = {}

    def observe(self, labels: Labels, seconds: float) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[labels] += seconds

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._meaning, labels=self._labels)
        bounds = [*map(str, self._bounds), "+Inf"]
        for values, counts in list(self._counts.items()):  # a probe reads it in another thread
            family.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), self._sums[values])
        yield family


def _build_info(role: str) -> Iterable[Metric]:
    meaning = "Always 1; the labels are the version of this process and its role"
    yield gauges("dagmaster_build_info", meaning, ("version", "role"), {(__version__, role): 1.0})


def _unsuffixed(name: str) -> str:
    if not name.endswith("_total"):
        raise ValueError(f"the name of a counter ends in _total: {name}")
    return name.removesuffix("_total")
