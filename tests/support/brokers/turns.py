"""The broker's own measurement of the turns of its event loop."""

from __future__ import annotations

import re
import urllib.request

from .nilometer_broker import NilometerBroker

TURN_MS_MAX = 200
"""Far above what any slice needs and far below what the large requests of tests cost in one piece, so that a
busy machine does not matter."""


def longest_turns_ms(broker: NilometerBroker) -> dict[str, float]:
    """Return the longest turn (ms of processor time) of each API and task that took a millisecond."""
    assert broker.metrics_url is not None, "metrics.listener is not set"
    with urllib.request.urlopen(broker.metrics_url, timeout=60) as page:
        text = page.read().decode()
    pattern = r'^nilometer_event_loop_longest_turn_seconds\{work="([^"]*)"\} (\S+)$'
    return {name: 1000 * float(seconds) for name, seconds in re.findall(pattern, text, re.MULTILINE)}
