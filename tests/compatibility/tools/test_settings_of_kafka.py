"""The committed list of Kafka's settings is what the installed Kafka defines; docs/settings.md uses it.

`PYTHONPATH=tests python -m support.documentation.kafka_settings`, then `make reference`, for another version.
"""

from __future__ import annotations

import pytest

from support.documentation.kafka_settings import FILE, as_text, settings_of_installed_kafka

pytestmark = pytest.mark.java


def test_the_list_is_that_of_the_installed_kafka() -> None:
    assert FILE.read_text(encoding="utf-8") == as_text(settings_of_installed_kafka())
