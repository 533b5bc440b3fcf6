"""Who may send requests to the console: its own pages; no foreign name and no foreign page."""

from __future__ import annotations

import pytest

from nilometer.console.server import Console, NotLoopback, is_loopback
from nilometer.console.web.guard import allowed_hosts, refusal

ALLOWED = allowed_hosts("127.0.0.1", 8080)
OWN = "http://127.0.0.1:8080"


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "[::1]:8080"])
def test_its_own_names_are_served(host: str) -> None:
    assert refusal("GET", [host], [], ALLOWED) is None


@pytest.mark.parametrize(
    "hosts",
    [
        ["rebound.example:8080"],
        ["127.0.0.1.rebound.example:8080"],
        ["127.0.0.1"],
        ["127.0.0.1:9092"],
        ["127.0.0.1:8080", "rebound.example"],
        [],
    ],
)
def test_a_foreign_name_is_refused(hosts: list[str]) -> None:
    """DNS rebinding: a foreign name that resolves to this machine."""
    refused = refusal("GET", hosts, [], ALLOWED)
    assert refused is not None
    assert refused[0] == 421


@pytest.mark.parametrize(
    ("method", "origins", "is_served"),
    [
        ("GET", [OWN], True),
        ("GET", ["http://foreign.example"], False),
        ("GET", ["null"], False),
        ("POST", [OWN], True),
        ("POST", [], False),
        ("POST", ["null"], False),
        ("POST", ["http://localhost:8080"], False),
        ("POST", ["https://127.0.0.1:8080"], False),
        ("POST", [OWN, OWN], False),
    ],
)
def test_a_foreign_page_is_refused(method: str, origins: list[str], is_served: bool) -> None:
    refused = refusal(method, ["127.0.0.1:8080"], origins, ALLOWED)
    assert (refused is None) is is_served
    assert refused is None or refused[0] == 403


def test_only_loopback_is_listened_on() -> None:
    assert [one for one in ("127.0.0.1", "127.9.9.9", "::1", "localhost") if not is_loopback(one)] == []
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com", ""):
        with pytest.raises(NotLoopback, match="no login yet"):
            Console({}, host, 0)
