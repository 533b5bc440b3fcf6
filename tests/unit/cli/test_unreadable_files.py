"""A file that cannot be read is named once, with the reason."""

from __future__ import annotations

import errno
from pathlib import Path

import click
import pytest

from nilometer.cli.pipelines import pipeline_formats_commands
from nilometer.cli.pipelines.pipeline_formats_commands import check_files, read_formats
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.recognition import Formats, matcher_of


def test_a_file_of_formats(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException) as refused:
        read_formats([tmp_path])
    assert refused.value.message == f"--formats: {tmp_path} cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "Permission denied"),
        (EOFError("cut"), "cut"),
    ],
)
def test_a_file_of_lines(
    error: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise error

    (lines := tmp_path / "lines").write_text("a line\n")
    monkeypatch.setattr(pipeline_formats_commands, "_lines_of", refuse)
    with pytest.raises(PipelineError) as refused:
        check_files(matcher_of(Formats(), "UTC"), [str(lines)], 1)
    assert str(refused.value) == f"{lines} cannot be read: {reason}"
