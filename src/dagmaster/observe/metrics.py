"""Metrics for Prometheus, on prometheus-client.

Counters of hot paths stay plain integers of the objects that count: only the event loop writes them, so they need no
lock. They become samples when they are read (`Reading`). Durations are histograms of prometheus-client.

Each server has a registry of its own (`new_registry`); none uses the library's global one, because several servers may
run in one process. Labels have few values: names of queues, handlers and routes, never paths, ids or texts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dagmaster import __version__

EXPOSITION_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TASK_SECONDS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)

Labels = tuple[str, ...]
Values = TypeVar("Values", bound=Labels)  # a mapping is invariant in its keys


class Reading(Collector):
    """Calls a function at every scrape, and exposes what it returns."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would otherwise read the values when they are registered."""
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


def counters(name: str, meaning: str, labels: Labels, samples: Mapping[Values, float]) -> Metric:
    """A count for each combination of labels."""
    family = CounterMetricFamily(_unsuffixed(name), meaning, labels=labels)
    for values, value in samples.items():
        family.add_metric(values, value)
    return family


def gauges(name: str, meaning: str, labels: Labels, samples: Mapping[Values, float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in samples.items():
        family.add_metric(values, value)
    return family


class Durations:
    """How long things took, as a histogram for each combination of labels."""

    def __init__(self, name: str, meaning: str, labels: Labels, buckets: tuple[float, ...]) -> None:
        # Without a registry: it is read where it is exposed. Without `_created`, which doubles the series.
        self._histogram = Histogram(name, meaning, labels, buckets=buckets, registry=None)
        self._children: dict[Labels, Histogram] = {}

    def observe(self, labels: Labels, seconds: float) -> None:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._histogram.labels(*labels)
        child.observe(seconds)

    def collect(self) -> Iterable[Metric]:
        for metric in self._histogram.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _build_info(role: str) -> Iterable[Metric]:
    meaning = "1; the labels are the version of this process and its role"
    yield gauges("dagmaster_build_info", meaning, ("version", "role"), {(__version__, role): 1.0})


def _unsuffixed(name: str) -> str:
    if not name.endswith("_total"):
        raise ValueError(f"the name of a counter ends in _total: {name}")
    return name.removesuffix("_total")
