"""What executors say that they have written must be on this machine before it is committed."""

from __future__ import annotations

import pytest

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.staged_files import StagedFile, require_seen


def test_a_file_that_is_not_here_or_not_whole_is_refused_by_name(tmp_path):
    (tmp_path / "whole").write_bytes(b"12345")
    require_seen(tmp_path, [StagedFile("whole", 1, 5)])
    for file in (StagedFile("whole", 1, 6), StagedFile("missing", 1, 5)):
        with pytest.raises(PipelineError, match=f"{tmp_path / file.path}, but this machine does not see it"):
            require_seen(tmp_path, [StagedFile("whole", 1, 5), file])
