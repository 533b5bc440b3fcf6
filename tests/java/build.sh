#!/usr/bin/env bash
# Apache Kafka, its clients and tools, Spark's Kafka connector and the applications that the tests run into tests/java/target/, once per
# change of the sources here.
# Missing Java or Maven: installed with apt when root on Debian or Ubuntu, else named. KAFKA_VERSION=x.y.z tries another release.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p target
exec 9>target/.lock
flock 9

sum() { LC_ALL=C sort | xargs cat | cksum | cut -d' ' -f1; }
versions="$(find . -name pom.xml -not -path './target/*' | sum)-${KAFKA_VERSION:-pom}"
stamp="target/.stamp-$versions-$(find kafka/src build.sh -type f | sum)"
[ -e "$stamp" ] && exit 0

java_major() { java -XshowSettings:properties -version 2>&1 | sed -nE 's/ *java\.specification\.version = ([0-9]+).*/\1/p'; }

install_if_root_on_debian() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing $* ..." >&2
    if { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >target/apt.log 2>&1; then return; fi
    tail -5 target/apt.log >&2
  fi
  echo "The Java parts of the tests need a JDK of version 17 or newer and Maven. Install them (Debian, Ubuntu: apt install $*) and run this again." >&2
  exit 1
}

if ! command -v javac >/dev/null || [ "$(java_major)" -lt 17 ]; then install_if_root_on_debian default-jdk-headless maven; fi
command -v mvn >/dev/null || install_if_root_on_debian maven

echo "Building tests/java: Apache Kafka, Spark's Kafka connector and applications through Maven (once; about two minutes) ..." >&2
rm -f target/.stamp-*
if [ "$(cat target/.versions 2>/dev/null)" != "$versions" ]; then rm -rf target/{kafka,connect,spark,apicurio,connect-plugins,*-build}; fi
if ! mvn -B -q package ${KAFKA_VERSION:+-Dkafka.version=$KAFKA_VERSION} >target/maven.log 2>&1 9>&-; then
  grep -m5 ERROR target/maven.log >&2 || tail -20 target/maven.log >&2
  echo "Maven could not build tests/java (log: tests/java/target/maven.log). It needs to reach Maven Central, directly or through a mirror of ~/.m2/settings.xml." >&2
  exit 1
fi
echo "$versions" >target/.versions
touch "$stamp"
