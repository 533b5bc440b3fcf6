"""Write the class archives that the tests' JVMs use: `make class-archives`.

Short runs of Kafka, its clients and Connect record which classes they load, and one archive is made of the
lists. A Spark session writes its archive itself when it ends.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..applications.kafka_connect import ConnectWorker
from ..kafka.apache_kafka import JVM_FOR_SECONDS, ApacheKafka, java_command
from ..kafka.java_driver import JavaDriver
from . import archives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
TOPIC = "records"
ROWS = 1000
DUMP_TIMEOUT_S = 300.0


def main() -> None:
    made_of = _inputs()
    stamp = archives.FOLDER / "made-of"
    writers = (
        (archives.KAFKA, write_for_kafka),
        (archives.CONNECT, write_for_connect),
        (archives.SPARK, write_for_spark),
    )
    are_there = all(archive.exists() for archive, _ in writers)
    if are_there and stamp.exists() and stamp.read_text() == made_of:
        return
    archives.FOLDER.mkdir(parents=True, exist_ok=True)
    print("Writing archives of Java classes for the tests (once; about a minute) ...", flush=True)
    for archive, write in writers:
        part = archive.with_suffix(".part")
        part.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            write(part, Path(folder))
        part.replace(archive)
    stamp.write_text(made_of)


def _inputs() -> str:
    """Return what the archives depend on: the versions of Java, of Kafka's jars and of Spark's."""
    import pyspark

    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    sums = hashlib.sha256(java.encode())
    for word in java_command("", jvm=JVM_FOR_SECONDS):
        sums.update(word.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        sums.update(source.read_bytes())
    kafka, connect = _jars(java_command("")), _jars(java_command(CONNECT))
    for jar in (*kafka, *connect, *sorted(Path(pyspark.__file__).parent.glob("jars/*.jar"))):
        sums.update(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}\n".encode())
    return sums.hexdigest()


def _jars(command: list[str]) -> list[Path]:
    places = command[command.index("-cp") + 1].split(":")
    return [
        jar
        for place in map(Path, places)
        for jar in (sorted(place.parent.glob("*.jar")) if place.name == "*" else [place])
    ]


def write_for_kafka(archive: Path, folder: Path) -> None:
    lists = folder / "lists"
    lists.mkdir()

    kafka = ApacheKafka(folder / "kafka", jvm=_recording(lists / "broker"))
    config = {"bootstrap.servers": kafka.bootstrap}
    with kafka, JavaDriver(_recording(lists / "clients")) as java:
        java.run("create_topics", config=config, topics=[{"name": TOPIC, "configs": {}}])
        java.run(
            "produce",
            config={**config, "transactional.id": "writer", "compression.type": "zstd"},
            records=[{"topic": TOPIC, "value": "eA=="}],
            transaction="commit",
        )
        java.run("consume", config={**config, "isolation.level": "read_committed"}, topic=TOPIC)
    _dump("", lists, archive)


def write_for_connect(archive: Path, folder: Path) -> None:
    lists = folder / "lists"
    lists.mkdir()
    jvm = _recording(lists / "connect")
    with ApacheKafka(folder / "kafka") as kafka:
        worker = ConnectWorker(folder / "connect", kafka.bootstrap, jvm=jvm)
        with worker.application as application:
            application.wait_until(worker.serves, "Connect serves")
            application.stop()
    _dump(CONNECT, lists, archive)


def _recording(classes: Path) -> tuple[str, ...]:
    return (*JVM_FOR_SECONDS, f"-XX:DumpLoadedClassList={classes}", "-Xlog:cds=off")


def _dump(main_class: str, lists: Path, archive: Path) -> None:
    """Write the archive of the classes in ``lists``, for the class path of ``main_class``."""
    classes = lists.parent / "classes"
    lines = dict.fromkeys(line for each in sorted(lists.iterdir()) for line in each.read_text().splitlines())
    classes.write_text("\n".join(lines) + "\n")
    dump = (
        *JVM_FOR_SECONDS,
        "-Xshare:dump",
        f"-XX:SharedClassListFile={classes}",
        f"-XX:SharedArchiveFile={archive}",
        "-Xlog:cds=off",
    )
    _run([word for word in java_command(main_class, jvm=dump) if word != main_class], archive)


def _run(command: list[str], archive: Path) -> None:
    done = subprocess.run(
        [word for word in command if word],
        capture_output=True,
        text=True,
        check=False,
        timeout=DUMP_TIMEOUT_S,
    )
    if done.returncode or not archive.exists():
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")


def write_for_spark(archive: Path, folder: Path) -> None:
    from nilometer.pipeline.spark.spark_session import build_session

    os.environ[archives.SPARK_OPTIONS] = (
        f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    )
    session = build_session("archive", master="local[2]", quick=True, log_file=folder / "spark.log")
    jvm = session.sparkContext._gateway.proc  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    _batch(session, folder)
    _stream(session, folder)
    session.stop()
    session.sparkContext._gateway.shutdown()  # pyright: ignore[reportOptionalMemberAccess]
    jvm.stdin.close()
    jvm.wait(DUMP_TIMEOUT_S)
    if not archive.exists():
        raise RuntimeError(
            f"Spark ended without writing {archive}:\n{(folder / 'spark.log').read_text()[-4000:]}"
        )


def _batch(session: SparkSession, folder: Path) -> None:
    """Run what most tests run: files, a window, an aggregation, Python's functions."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    rows = session.range(ROWS).select("id", (f.col("id") % 7).alias("key"), f.current_timestamp().alias("at"))
    rows.write.parquet(str(folder / "rows"))
    read = session.read.parquet(str(folder / "rows"))
    latest = Window.partitionBy("key").orderBy(f.desc("id"))
    read.withColumn("number", f.row_number().over(latest)).where("number = 1").collect()
    read.mapInArrow(lambda batches: batches, read.schema).groupBy("key").agg(
        f.sum("id"), f.max("at")
    ).collect()
    read.join(session.createDataFrame([(1, "one")], "key bigint, name string"), "key").toPandas()
    read.write.json(str(folder / "lines"))
    session.read.json(str(folder / "lines")).count()


def _stream(session: SparkSession, folder: Path) -> None:
    from pyspark.sql import functions as f

    rows = session.readStream.schema("id bigint, key bigint, at timestamp").parquet(str(folder / "rows"))
    counts = rows.withWatermark("at", "1 minute").groupBy(f.window("at", "1 minute"), "key").count()
    counts.writeStream.trigger(availableNow=True).outputMode("append").option(
        "checkpointLocation", str(folder / "checkpoint")
    ).start(str(folder / "counts"), format="parquet").awaitTermination(DUMP_TIMEOUT_S)


if __name__ == "__main__":
    main()
