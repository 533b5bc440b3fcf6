"""docs/metrics.md lists every metric of the code, and no other.

``NILOMETER_WRITE_DOCS=1 pytest tests/unit/broker/test_metrics_page.py`` writes its tables.
"""

from __future__ import annotations

import os

from nilometer.broker.monitoring.endpoint import FAMILIES, PARTITION_FAMILIES
from nilometer.cli.exporter import FAMILIES as EXPORTER_FAMILIES
from nilometer.metrics import SERIES_OMITTED
from support.documentation.metrics_tables import PAGE, with_tables

TABLES = {
    "broker": (*FAMILIES, SERIES_OMITTED),
    "partitions": PARTITION_FAMILIES,
    "exporter": EXPORTER_FAMILIES,
}


def test_the_page_has_every_metric_with_its_meaning() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("NILOMETER_WRITE_DOCS"):
        PAGE.write_text(with_tables(text, TABLES), encoding="utf-8")
        text = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        assert f"<!-- table: {name} -->" in text
    assert text == with_tables(text, TABLES), "NILOMETER_WRITE_DOCS=1 with this test writes the tables"
