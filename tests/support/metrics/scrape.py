"""Scrapes of metrics over HTTP, parsed."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ..ports import HOST

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)


def page(port: int, path: str, accept: str = "*/*") -> Page:
    """Return a page of a server on loopback. Raises OSError if there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        response = connection.getresponse()
        return Page(response.status, response.read().decode())
    finally:
        connection.close()


class Scrape:
    """The samples of one scrape: `scrape("name", label="value")` is the value of one series."""

    def __init__(self, port: int) -> None:
        found = page(port, "/metrics")
        assert found.status == 200, found
        self.text = found.text
        self.types = {one.name: one.type for one in text_string_to_metric_families(self.text)}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """Return the value of a series; raises KeyError if there is none with exactly these labels."""
        return self._samples[name, frozenset(labels.items())]

    def has(self, name: str, **labels: str) -> bool:
        return (name, frozenset(labels.items())) in self._samples

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of the series with these labels, whatever others they have."""
        wanted = labels.items()
        return sum(
            value for (found, pairs), value in self._samples.items() if found == name and wanted <= pairs
        )

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self._samples}
