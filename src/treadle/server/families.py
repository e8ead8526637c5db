"""Metric families of one prefix and one set of labels, so that no name or label is spelt twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Families:
    """Every sample made here carries the same labels, besides its own."""

    def __init__(self, registry: CollectorRegistry, prefix: str, labels: dict[str, str]) -> None:
        self._registry = registry
        self._prefix = prefix
        self._labels = labels

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(
            self._prefix + name, text, list(self._labels), buckets=buckets, registry=self._registry
        )
        return family.labels(**self._labels)

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
