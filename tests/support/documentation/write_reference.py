"""Write the generated parts of the documentation: `make reference`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import command_reference, errors_reference, python_reference, settings_reference
from .generated_parts import with_parts


def main() -> None:
    command_reference.PAGE.write_text(
        command_reference.page_with(command_reference.reference()), encoding="utf-8"
    )
    write(settings_reference.PAGE, settings_reference.settings_parts())
    write(errors_reference.PAGE, errors_reference.errors_parts())
    write(python_reference.PAGE, python_reference.python_parts())


def write(page: Path, parts: Mapping[str, str]) -> None:
    page.write_text(with_parts(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


if __name__ == "__main__":
    main()
