"""What Apache Kafka answered in tests that compare with it, written down: they then run without a JVM.

`make record` asks Apache Kafka again, and writes a file for each test module into ``recorded/`` beside them.
An answer is what `two_brokers` makes of a response, as JSON.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .two_brokers import Plain, Side, differences

RECORDED, LIVE = "recorded", "live"
"""The two ways to run a test that compares: with what was recorded, and with Apache Kafka."""
RENEW = "Apache Kafka does not answer what is recorded; `make record` writes what it answers"


class Kafka:
    """Apache Kafka in one test: its answers in their order, from it or from the recording."""

    def __init__(self, side: Side | None, recorded: list[Plain]) -> None:
        """``side``: None: only the recorded answers are known."""
        self.side = side
        self.recorded = recorded
        self.answers: list[Plain] = []

    def answer(self, scenario: Callable[[Side], Plain]) -> Plain:
        if self.side is not None:
            answer = as_json(scenario(self.side))
        else:
            assert len(self.answers) < len(self.recorded), "this is not recorded yet: `make record`"
            answer = self.recorded[len(self.answers)]
        self.answers.append(answer)
        return answer

    def check(self) -> None:
        """Assert that the answers are those that are recorded."""
        found = differences(self.recorded, self.answers)
        assert not found, "\n".join([RENEW, *found])


def as_json(answer: Plain) -> Plain:
    """Return ``answer`` as it is read back from JSON. Raises TypeError."""
    match answer:
        case dict():
            return {str(name): as_json(value) for name, value in answer.items()}
        case list() | tuple():
            return [as_json(item) for item in answer]
        case bytes():
            return repr(answer)
        case enum.Enum():
            return answer.name
        case str() | int() | float() | None:
            return answer
    raise TypeError(f"no answer has {answer!r}")


class Recordings:
    """The recorded answers of the tests of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, dict[str, list[Plain]]] = {}

    def of(self, request: pytest.FixtureRequest) -> list[Plain]:
        """Return what is recorded for a test; nothing, if it was never recorded."""
        return self._module(request).get(name_of(request), [])

    def keep(self, request: pytest.FixtureRequest, kafka: Kafka) -> None:
        self._module(request)[name_of(request)] = kafka.answers

    def write(self) -> None:
        self._folder.mkdir(exist_ok=True)
        for module, tests in self._modules.items():
            lines = (f"{json.dumps(name)}: {json.dumps(tests[name])}" for name in sorted(tests))
            self._path(module).write_text("{\n" + ",\n".join(lines) + "\n}\n")

    def _module(self, request: pytest.FixtureRequest) -> dict[str, list[Plain]]:
        module = request.path.stem
        if module not in self._modules:
            path = self._path(module)
            self._modules[module] = json.loads(path.read_text()) if path.exists() else {}
        return self._modules[module]

    def _path(self, module: str) -> Path:
        return self._folder / f"{module.removeprefix('test_')}.json"


def name_of(request: pytest.FixtureRequest) -> str:
    """Return the name of a test, the same for both ways to run it."""
    parts = request.node.callspec.id.split("-")
    parts.remove(request.param)
    return f"{request.node.originalname}[{'-'.join(parts)}]"
