"""The Java that Spark needs: found, or said to be missing in words that help."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from nilometer.pipeline.errors import PipelineProblem

JAVA_MIN = 17
_HOW = (
    f"Spark needs Java {JAVA_MIN} or newer. On Debian or Ubuntu: "
    f"apt-get install openjdk-{JAVA_MIN}-jre-headless; elsewhere install a JDK and set JAVA_HOME"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def require_java() -> str:
    """The path of the ``java`` that Spark will use. Raises PipelineProblem."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, where there is no bin/java" if home else "No java was found"
        raise PipelineProblem(f"{where}. {_HOW}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = _VERSION.search(said)
    if found is None or int(found[1]) < JAVA_MIN:
        version = found[1] if found else said.strip() or "of unknown version"
        raise PipelineProblem(f"{java} is Java {version}. {_HOW}")
    return java
