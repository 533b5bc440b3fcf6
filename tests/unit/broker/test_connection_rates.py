"""How many connections per second a broker and a listener take (``max.connection.creation.rate``)."""

from __future__ import annotations

import pytest

from nilometer.broker.quotas import WAIT_MS_MAX, ConnectionRates
from nilometer.broker.settings.config import BrokerConfig
from nilometer.config import ConfigError

OF_BROKER = "max.connection.creation.rate"
OF_CLIENTS = f"listener.name.clients.{OF_BROKER}"


class Rates:
    """Listeners CLIENTS and INSIDE, on a clock that the test sets; what is allowed at once is that of 2 s."""

    def __init__(self, **changes: str) -> None:
        config = BrokerConfig(
            {
                "node.id": "1",
                "listeners": "CLIENTS://:9092,INSIDE://:9093",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INSIDE:PLAINTEXT",
                "inter.broker.listener.name": "INSIDE",
                "quota.window.num": "3",
                **changes,
            }
        )
        self.now_ms = 1_000_000
        self.rates = ConnectionRates(config, lambda: self.now_ms)

    def waits(self, count: int, listener: str = "CLIENTS") -> list[int]:
        """Return for how long each of ``count`` connections waits that are opened at once."""
        return [self.rates.on_connection(listener) for _ in range(count)]


def test_without_a_rate_nothing_is_counted() -> None:
    assert not Rates().rates.limits_connections
    assert Rates(**{OF_CLIENTS: "5"}).rates.limits_connections


@pytest.mark.parametrize("key", [OF_BROKER, OF_CLIENTS])
def test_what_is_above_the_rate_waits_in_turn_and_then_is_closed(key: str) -> None:
    rates = Rates(**{key: "5"})
    assert rates.waits(10) == [0] * 10, "two seconds of the rate"
    waiting = [wait_ms for wait_ms in rates.waits(100) if wait_ms <= WAIT_MS_MAX]
    assert waiting == [200 * turn for turn in range(1, 26)], "one each 200 ms, up to 5 s"
    assert rates.rates.on_connection("CLIENTS") > WAIT_MS_MAX
    rates.now_ms += 1_000
    assert len([wait_ms for wait_ms in rates.waits(10) if wait_ms <= WAIT_MS_MAX]) == 5, (
        "those that were closed do not count"
    )


def test_a_listener_has_its_own_rate_besides_that_of_the_broker() -> None:
    rates = Rates(**{OF_CLIENTS: "5"})
    assert max(rates.waits(50, "INSIDE")) == 0
    rates = Rates(**{OF_CLIENTS: "50", OF_BROKER: "5"})
    assert max(rates.waits(11)) == 200, "the longer of the two"


def test_the_listener_between_brokers_is_exempt_from_the_brokers_rate() -> None:
    rates = Rates(**{OF_BROKER: "5"})
    assert max(rates.waits(50, "INSIDE")) == 0
    assert max(rates.waits(10)) == 0, "and does not use it up"
    only = Rates(
        **{
            OF_BROKER: "5",
            "listeners": "CLIENTS://:9092",
            "inter.broker.listener.name": "CLIENTS",
        }
    )
    assert max(only.waits(11)) == 200, "unless it is the only one"


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Rates(**{OF_BROKER: "0"})
