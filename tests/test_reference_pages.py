"""Pages that say what the code defines, as docs/settings.md; `make reference` writes their tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.broker.settings.config_keys import IGNORED_KEYS, REFUSED_KEYS
from nilometer.broker.settings.listener_security import split_overrides
from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION
from nilometer.config import ConfigKey, ConfigKind, parse_properties
from support.documentation import errors_reference, python_reference, settings_reference
from support.documentation.code_blocks import DOCS, code_blocks
from support.documentation.errors_reference import error_advice, error_texts, literal, sources
from support.documentation.generated_parts import with_parts
from support.documentation.kafka_settings import KafkaKey, kafka_settings
from support.documentation.settings_reference import differences, valid_values

PARTS = {
    settings_reference.PAGE: settings_reference.settings_parts,
    errors_reference.PAGE: errors_reference.errors_parts,
    python_reference.PAGE: python_reference.python_parts,
}


@pytest.mark.parametrize("page", PARTS, ids=lambda page: page.name)
def test_the_page_is_what_the_code_defines(page: Path) -> None:
    parts: Mapping[str, str] = PARTS[page]()
    text = page.read_text(encoding="utf-8")
    assert text == with_parts(text, parts), "`make reference` writes the page"


def test_every_key_that_a_broker_accepts_is_on_the_page() -> None:
    text = settings_reference.PAGE.read_text(encoding="utf-8")
    assert [name for name in {*BROKER_CONFIG_DEFINITION.keys, *IGNORED_KEYS} if f"`{name}`" not in text] == []


def test_a_key_that_is_refused_is_one_of_kafka_that_no_broker_here_knows() -> None:
    names = re.findall(r"`([^`]+)`", settings_reference.settings_parts()["refused_broker"])
    assert set(names) <= set(kafka_settings()["broker"])
    assert set(names) == REFUSED_KEYS
    for name in names:
        with pytest.raises(ValueError, match=f"The broker config {name} of Kafka is not supported"):
            BrokerConfig({"node.id": "1", name: "1"})


def key(**changes: object) -> ConfigKey:
    return ConfigKey(**{"name": "k", "kind": ConfigKind.INT, "default": 5, "doc": "", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "kafka", "expected"),
    [
        (key(), KafkaKey(default="5", dynamic=False), []),
        (key(), None, ["not in Kafka"]),
        (key(), KafkaKey(default="6", dynamic=False), ["default: `6`"]),
        (key(), KafkaKey(default=None, dynamic=False), ["default: none"]),
        (key(default=None), KafkaKey(default="", dynamic=False), []),
        (key(), KafkaKey(default="5", dynamic=True), ["can change while a broker runs"]),
        (key(dynamic=True), KafkaKey(default="5", dynamic=False), ["changes only at a start"]),
        (key(kind=ConfigKind.DOUBLE, default=1e3), KafkaKey(default="1000.0", dynamic=False), []),
        (key(kind=ConfigKind.BOOLEAN, default=True), KafkaKey(default="true", dynamic=False), []),
        (key(kind=ConfigKind.LIST, default=("a", "b")), KafkaKey(default="a,b", dynamic=False), []),
    ],
)
def test_what_differs_from_kafka(ours: ConfigKey, kafka: KafkaKey | None, expected: list[str]) -> None:
    assert differences(ours, kafka) == expected


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (key(), "int"),
        (key(minimum=1), "int, at least 1"),
        (key(minimum=0.1, maximum=1, kind=ConfigKind.DOUBLE), "double, at least 0.1, at most 1"),
        (key(kind=ConfigKind.STRING, choices=("a", "")), "a, (empty)"),
        (key(kind=ConfigKind.LIST, choices=("a", "b")), "list of a, b"),
        (
            key(validate=lambda value: None if value == 5 else "tiered storage is not supported"),
            "int: only the default",
        ),
        (key(validate=lambda value: None if value else "must not be 0"), "int, must not be 0"),
    ],
)
def test_valid_values(ours: ConfigKey, expected: str) -> None:
    assert valid_values(ours) == expected


def test_advice_is_given_for_each_error_that_is_sent() -> None:
    assert set(error_advice()) == set(error_texts())


@cache
def literals() -> frozenset[str]:
    """All texts in the code; %-formats have … for their values, as others have."""
    return frozenset(
        re.sub(r"%[-+#0-9.]*[a-z]", "…", text)
        for source in sources()
        for node in ast.walk(ast.parse(source))
        if (text := literal(node)) is not None and " " in text
    )


def messages() -> Iterator[str]:
    """Yield the first cells of the tables of messages that are written by hand."""
    text = errors_reference.PAGE.read_text(encoding="utf-8").partition("## What a client gets")[0]
    yield from re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_there_are_messages() -> None:
    assert len(list(messages())) > 20


@pytest.mark.parametrize("message", list(messages()))
def test_a_message_of_the_page_is_in_the_code(message: str) -> None:
    assert any(message in text for text in literals())


def blocks_of_properties() -> Iterator[tuple[str, str]]:
    for page in sorted(DOCS.rglob("*.md")):
        name = str(page.relative_to(DOCS))
        yield from ((name, block) for block in code_blocks(name, "properties"))


def test_there_are_blocks_of_properties() -> None:
    assert len(list(blocks_of_properties())) >= 5


@pytest.mark.parametrize(("page", "block"), list(blocks_of_properties()))
def test_settings_on_a_page_are_valid(page: str, block: str) -> None:
    texts = parse_properties(block, page)
    if "security.protocol" in texts:
        CONSUMER_CONFIG_DEFINITION.parse(texts)
    else:
        BROKER_CONFIG_DEFINITION.parse(split_overrides(texts)[0])
