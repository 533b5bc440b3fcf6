"""Which form of a module is imported (:mod:`nilometer.compiled`)."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

import pytest

from nilometer.compiled import (
    MANIFEST,
    VARIABLE,
    CompiledFinder,
    StaleModule,
    digest_of,
    file_name,
    form,
    source_of,
    use,
)
from nilometer.compiled.build import CannotCompile, build

NAME = "nilometer.wire.frames"


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiled module is found, whatever runs these tests."""
    rest = [finder for finder in sys.meta_path if not isinstance(finder, CompiledFinder)]
    monkeypatch.setattr(sys, "meta_path", rest)
    monkeypatch.delenv(VARIABLE, raising=False)


def write(folder: Path, **changed: Any) -> Path:
    manifest = {"interpreter": sys.implementation.cache_tag, "is_default": False, "digests": {}, **changed}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_the_compiled_form_of_the_present_source_is_found(tmp_path: Path) -> None:
    finder = CompiledFinder(tmp_path, {NAME: digest_of(source_of(NAME))})
    found = finder.find_spec(NAME)
    assert found is not None
    assert isinstance(found.loader, ExtensionFileLoader)
    assert found.origin == str(tmp_path / file_name(NAME))
    assert finder.find_spec("nilometer.wire.errors") is None


def test_the_compiled_form_of_another_source_is_refused(tmp_path: Path) -> None:
    finder = CompiledFinder(tmp_path, {NAME: digest_of(source_of("nilometer.wire.errors"))})
    with pytest.raises(StaleModule, match=r"nilometer\.wire\.frames has changed .*make compiled"):
        finder.find_spec(NAME)


def test_a_checkout_is_interpreted_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path)
    use(folder)
    assert form() == "interpreted"
    monkeypatch.setenv(VARIABLE, "1")
    use(folder)
    assert form() == "compiled"
    finders = len(sys.meta_path)
    use(folder)
    assert len(sys.meta_path) == finders


def test_an_installation_is_compiled_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, is_default=True)
    monkeypatch.setenv(VARIABLE, "0")
    use(folder)
    assert form() == "interpreted"
    monkeypatch.delenv(VARIABLE)
    use(folder)
    assert form() == "compiled"


def test_what_is_neither_0_nor_1_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ImportError, match="is 'yes': give 1"):
        use(tmp_path)


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    with pytest.raises(CannotCompile, match="no compiled modules, so it is not replaced"):
        build(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("interpreter", [None, "cpython-310"])
def test_what_is_asked_for_and_not_there_is_an_error(
    interpreter: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if interpreter is not None:
        write(tmp_path, interpreter=interpreter, is_default=True)
    use(tmp_path)
    assert form() == "interpreted"
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(ImportError, match="make compiled"):
        use(tmp_path)
