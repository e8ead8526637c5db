"""Metric families of one prefix and one set of labels, so that no name or label is spelt twice."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Histogram(Collector):
    """Counts observations in buckets, in one thread. The library's takes a lock and a microsecond
    for each, and one is made for every token."""

    def __init__(
        self, name: str, text: str, labels: Mapping[str, str], bounds: Sequence[float]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = [float(bound) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(ends, itertools.accumulate(self._counts), strict=True))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        return [family]


class Families:
    """Every sample made here carries the same labels, besides its own."""

    def __init__(self, registry: CollectorRegistry, prefix: str, labels: dict[str, str]) -> None:
        self._registry = registry
        self._prefix = prefix
        self._labels = labels

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(self._prefix + name, text, self._labels, buckets)
        self._registry.register(histogram)
        return histogram

    def counter(self, name: str, text: str, **own: str) -> Counter:
        return self.counters(name, text, list(own), [list(own.values())])[tuple(own.values())]

    def counters(
        self, name: str, text: str, own: Sequence[str], values: Iterable[Sequence[str]]
    ) -> dict[tuple[str, ...], Counter]:
        """One counter for each combination of values of own labels, all there from the start."""
        family = Counter(self._prefix + name, text, [*self._labels, *own], registry=self._registry)
        return {
            tuple(value): family.labels(**self._labels, **dict(zip(own, value, strict=True)))
            for value in values
        }

    def gauge_now(self, name: str, text: str, value: float, **own: str) -> Metric:
        labels = {**self._labels, **own}
        family = GaugeMetricFamily(self._prefix + name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def count_now(self, name: str, text: str, value: float, **own: str) -> Metric:
        labels = {**self._labels, **own}
        family = CounterMetricFamily(self._prefix + name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def collect(self, samples: Callable[[], Iterable[Metric]]) -> None:
        """Have `samples` called whenever somebody asks for the metrics."""
        self._registry.register(_Sampler(samples))


class _Sampler(Collector):
    def __init__(self, samples: Callable[[], Iterable[Metric]]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        return self._samples()
