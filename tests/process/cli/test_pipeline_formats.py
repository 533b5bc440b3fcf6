"""``nilometer pipeline formats``: what it shows of files, and that it needs no Spark."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nilometer.cli.pipelines.pipeline_commands import pipeline

ACCESS = '::1 - - [01/Jan/2024:00:00:00 +0000] "GET /a HTTP/1.1" 200 5'
OTHER = ["ticket 12 opened", "ticket 13 opened"]


def run(*arguments: str | Path, stdin: str | None = None):
    return CliRunner().invoke(pipeline, ["formats", *map(str, arguments)], input=stdin)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    (folder / "old").mkdir(parents=True)
    (folder / "a.log").write_text("\n".join([ACCESS] * 6 + ["", *OTHER]))
    (folder / "old" / "a.log.1.gz").write_bytes(gzip.compress((ACCESS + "\r\n").encode()))
    (folder / "binary").write_bytes(b"\0\1\2")
    (folder / ".hidden").write_text("not to be read\n")
    return folder


def test_the_counts_as_json_have_lines_recognised_and_by_format(logs):
    result = run("test", logs, "--json")
    assert result.exit_code == 0
    listing = json.loads(result.output)
    assert (listing["lines"], listing["recognised"], listing["blank"], listing["unrecognised"]) == (
        10,
        7,
        1,
        2,
    )
    assert listing["by_format"] == {"access": 7}
    assert listing["samples"] == OTHER
    files = {Path(one["path"]).name: one for one in listing["files"]}
    assert files["a.log"]["recognised"] == 6
    assert files["a.log.1.gz"]["by_format"] == {"access": 1}
    assert [one["lines"] for one in listing["proposals"]] == [2]
    assert "line_by_line" not in listing


def test_proposals_that_take_little_of_their_own_sample_are_not_written_without_a_word(tmp_path):
    """Words that no line shares with another one make no format."""
    same = [f"ticket {number} opened" for number in range(30)]
    (tmp_path / "a.log").write_text(
        "\n".join([*same, *(f"{'abc'[n % 3] * (n + 3)} {n}x" for n in range(70))])
    )
    result = run("test", tmp_path / "a.log", "--write", tmp_path / "my.toml")
    share = json.loads(run("test", tmp_path / "a.log", "--json").output)["proposed_share"]
    assert 0.3 <= share < 0.95
    assert f"which take {share:.1%} of the lines of no format" in " ".join(result.output.split())
    assert f"Warning: together they take {share:.1%} of the lines of no format" in result.output
    (tmp_path / "b.log").write_text("\n".join(same))
    assert "Warning" not in run("test", tmp_path / "b.log", "--write", tmp_path / "new.toml").output
    (tmp_path / "c.log").write_text("one\n")
    none = run("test", tmp_path / "c.log", "--write", tmp_path / "none.toml").output
    assert f"Nothing is written to {tmp_path / 'none.toml'}: no format is proposed" in none
    assert not (tmp_path / "none.toml").exists()


def test_each_line_is_shown_with_its_format(logs):
    said = run("test", logs / "a.log").output
    assert f"1  access         2024-01-01T00:00:00+00:00 /a  | {ACCESS}" in said
    assert "8  no format        | ticket 12 opened" in said
    assert "2 of no format (25.0%)" in said
    shown = json.loads(run("test", logs / "a.log", "--json", "--lines", "1").output)["line_by_line"]
    assert [(one["line"], one["format"], one["fields"]["status"]) for one in shown] == [(1, "access", "200")]
    assert "... 8 more lines" in run("test", logs / "a.log", "--lines", "1").output


def test_a_proposal_that_was_written_recognises_the_rest(logs, tmp_path):
    mine = tmp_path / "mine.toml"
    assert run("test", logs, "--write", mine).exit_code == 0
    listing = json.loads(run("test", logs, "--formats", mine, "--json").output)
    assert (listing["unrecognised"], listing["by_format"]) == (0, {"access": 7, "mine-1": 2})
    listed = json.loads(run("list", "--formats", mine, "--json").output)["formats"]
    assert [one["name"] for one in listed][:2] == ["mine-1", "access"]
    mine.write_text("broken")
    refused = run("test", logs, "--write", mine)
    assert refused.exit_code == 1
    assert "was not changed" in refused.output
    assert mine.read_text() == "broken"


def test_too_many_lines_of_no_format_are_an_exit_code(logs):
    assert run("test", logs, "--max-unrecognised", "22.3").exit_code == 0
    result = run("test", logs, "--max-unrecognised", "22.2")
    assert result.exit_code == 3
    assert "2 lines (22.2%) are of no format; --max-unrecognised is 22.2 %" in result.output


def test_the_standard_input_and_a_line_longer_than_memory_should_hold(tmp_path):
    assert json.loads(run("test", "-", "--json", stdin=f"{ACCESS}\n").output)["by_format"] == {"access": 1}
    long = tmp_path / "long"
    long.write_bytes(ACCESS.encode() + b" " + b"x" * 5_000_000 + b"\n" + ACCESS.encode())
    listing = json.loads(run("test", long, "--json").output)
    assert (listing["lines"], listing["recognised"]) == (2, 1)


def test_what_is_wrong_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"line\n" * 10_000)[:-9])
    (tmp_path / "mine.toml").write_text('[[format]]\nname = "a"\npattern = "("')
    for arguments, says in (
        (("test", tmp_path / "none"), "is no file and no folder"),
        (("test", tmp_path / "empty"), "no line to read"),
        (("test", tmp_path / "cut.gz"), "cut.gz cannot be read"),
        (("list", "--formats", tmp_path / "mine.toml"), "mine.toml, format a: a pattern is not valid"),
        (("show", "nonsense"), "there is no format nonsense. There are access, syslog"),
        (("test", tmp_path / "cut.gz", "--timezone", "Mars"), "no time zone 'Mars'"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1, arguments
        assert says in result.output


def test_a_shown_format_is_a_definition_that_can_be_used(tmp_path):
    for name in ("access", "syslog", "json"):
        (tmp_path / "mine.toml").write_text(run("show", name).output)
        listed = json.loads(run("list", "--formats", tmp_path / "mine.toml", "--json").output)["formats"]
        assert listed[0]["name"] == name
    assert run("show", "syslog").output.count("[[format]]") == 3


def test_formats_work_where_spark_and_its_packages_are_not_installed(tmp_path):
    (tmp_path / "a.log").write_text(ACCESS)
    program = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {{"pyspark", "pyarrow", "pandas", "numpy", "numba", "matplotlib", "yaml"}}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from nilometer.cli.pipelines.pipeline_commands import pipeline
pipeline(["formats", "test", {str(tmp_path / "a.log")!r}, "--json"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["by_format"] == {"access": 1}
