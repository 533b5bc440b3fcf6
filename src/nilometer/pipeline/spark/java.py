"""Finds the Java that Spark needs, or installs it, or raises an error that says how to install it.

It is installed only by root on a system with apt, and only by :func:`ensure_java` (for ``make demo``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable

from nilometer.pipeline.errors import PipelineError

JAVA_MIN = 17
_HOW_TO_INSTALL = (
    f"Spark needs Java {JAVA_MIN} or newer. On Debian or Ubuntu: "
    f"apt-get install openjdk-{JAVA_MIN}-jre-headless; elsewhere install a JDK and set JAVA_HOME"
)
_PACKAGES = ("openjdk-21-jre-headless", f"openjdk-{JAVA_MIN}-jre-headless", "default-jre-headless")
"""The names of the package in Debian and Ubuntu releases, the best first; no release has all of them."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def require_java() -> str:
    """Return the path of the ``java`` that Spark will use. Raises PipelineError if none is suitable."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, where there is no bin/java" if home else "No java was found"
        raise PipelineError(f"{where}. {_HOW_TO_INSTALL}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = _VERSION.search(output)
    if found is None or int(found[1]) < JAVA_MIN:
        version = found[1] if found else output.strip() or "of unknown version"
        raise PipelineError(f"{java} is Java {version}. {_HOW_TO_INSTALL}")
    return java


def ensure_java(on_progress: Callable[[str], None]) -> str:
    """Return the path of ``java`` like ``require_java``, after installing it if possible and needed.

    ``on_progress`` is called with a line of progress. Raises PipelineError.
    """
    try:
        return require_java()
    except PipelineError:
        if os.environ.get("JAVA_HOME") or os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
    on_progress("Java is missing: installing it with apt-get (once; a minute or two) ...")
    _apt("update")
    known = [name for name in _PACKAGES if _is_known_to_apt(name)]
    if not known:
        raise PipelineError(f"apt-get finds none of {', '.join(_PACKAGES)}. {_HOW_TO_INSTALL}")
    _apt("install", "-y", "--no-install-recommends", known[0])
    return require_java()


def _is_known_to_apt(package: str) -> bool:
    return subprocess.run(["apt-cache", "show", package], capture_output=True, check=False).returncode == 0


def _apt(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise PipelineError(
            f"apt-get {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}. {_HOW_TO_INSTALL}"
        )
