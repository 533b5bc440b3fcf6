"""What :mod:`tools.merge_modules` must not lose when it makes one module of several."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import merge_modules
from tools.merge_modules import (
    Plan,
    PlanError,
    Rewriting,
    Source,
    in_order,
    merged,
    path_of,
    read_part,
    rewrite,
)

PART = '''"""About {name}."""

import logging

logger = logging.getLogger(__name__)


def {name}() -> None:
    logger.warning("{name}")
'''


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(merge_modules, "SOURCE", tmp_path)
    (tmp_path / "nilometer").mkdir()
    for name in ("early", "late"):
        (tmp_path / "nilometer" / f"{name}.py").write_text(PART.format(name=name))
    return tmp_path


def _merged(folder: Path, more: str = "") -> str:
    plan_file = folder / "plan.toml"
    plan_file.write_text(
        "[[module]]\nname = 'nilometer.both'\ndocstring = 'Both.'\n"
        f"parts = ['nilometer.early', 'nilometer.late']\n{more}"
    )
    plan = Plan(merge_modules.read_plan(plan_file))
    (target,) = plan.targets
    found: list[merge_modules.Part] = []
    for name in target.parts:
        rewriting = Rewriting(Source(path_of(name)), target, name)
        rewrite(plan, rewriting)
        found.append(read_part(plan, rewriting))
    return merged(target, in_order(found))


def test_a_module_with_two_loggers_is_refused_until_one_has_another_name(parts: Path):
    with pytest.raises(PlanError, match=r"logger: nilometer\.early and nilometer\.late"):
        _merged(parts)
    text = _merged(parts, "rename = { 'nilometer.late:logger' = 'late_logger' }\n")
    assert 'logger = logging.getLogger("nilometer.early")' in text
    assert 'late_logger = logging.getLogger("nilometer.late")' in text
    assert 'late_logger.warning("late")' in text


def test_the_list_of_compiled_modules_follows(parts: Path):
    plan_file = parts / "plan.toml"
    plan_file.write_text(
        "[[module]]\nname = 'nilometer.late'\ndocstring = 'Both.'\n"
        "parts = ['nilometer.early', 'nilometer.late']\n"
    )
    texts = merge_modules.Texts(Plan(merge_modules.read_plan(plan_file)))
    listed = 'MODULES = (\n    "early",\n    "late",\n    "other",\n)\n'
    assert texts.follow_compiled(listed) == 'MODULES = (\n    "late",\n    "other",\n)\n'
