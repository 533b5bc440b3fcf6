"""Downloads Kafka Connect and a connector of Debezium, with all that they need, as Spark does its packages.

Ivy, which comes with pyspark, resolves them from the local Maven repository and Maven Central. They are kept
in a folder of the user's cache; a folder is there completely or not at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.spark.java import require_java

CONNECT = (
    "org.apache.kafka:connect-runtime:4.3.1",
    "org.apache.kafka:connect-basic-auth-extension:4.3.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
_SETTINGS = """<ivysettings>
  <settings defaultResolver="all"/>
  <resolvers>
    <chain name="all" returnFirst="true">
      <ibiblio name="local" m2compatible="true" root="{local}"/>
      <ibiblio name="central" m2compatible="true"/>
    </chain>
  </resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0">
  <info organisation="nilometer" module="capture"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default->compile,runtime,master"/>'


def downloaded_jars(connector: str) -> Path:
    """Return the folder with the jars for a connector, a Maven coordinate, after downloading if needed.

    Raises PipelineError.
    """
    name = "_".join(one.split(":", 1)[1].replace(":", "-") for one in (connector, CONNECT[0]))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nilometer", "capture")
    folder = cache / name
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            jars = _download((connector, *CONNECT), Path(work), cache / "ivy")
            if not folder.exists():
                jars.rename(folder)
    return folder


def _download(coordinates: tuple[str, ...], work: Path, ivy_cache: Path) -> Path:
    settings, module, jars = work / "ivysettings.xml", work / "ivy.xml", work / "jars"
    settings.write_text(_SETTINGS.format(local=(Path.home() / ".m2" / "repository").as_uri() + "/"))
    dependencies = "".join(_DEPENDENCY.format(*one.split(":")) for one in coordinates)
    module.write_text(_MODULE.format(dependencies=dependencies))
    command = [
        require_java(), "-jar", str(_ivy()), "-settings", str(settings), "-ivy", str(module),
        "-cache", str(ivy_cache), "-types", "jar", "bundle", "maven-plugin",
        "-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not jars.exists():
        shutil.rmtree(jars, ignore_errors=True)
        missing = [line.strip(" :\t") for line in done.stdout.splitlines() if "not found" in line]
        reason = "; ".join(missing[:3]) or (done.stderr or done.stdout).strip()[-500:]
        raise PipelineError(
            f"Debezium ({coordinates[0]}) could not be downloaded from Maven Central: {reason}. Where it "
            "cannot be reached, --jars names a folder with the jars of the connector and of Kafka Connect"
        )
    return jars


def _ivy() -> Path:
    import pyspark

    return next(Path(pyspark.__file__).parent.joinpath("jars").glob("ivy-*.jar"))
