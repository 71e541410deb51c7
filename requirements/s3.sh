#!/bin/sh
# Installs the JARs that Spark needs for a lake on S3:  requirements/s3.sh, for the Spark of .venv or of PYTHON
# Maven fetches them into Spark's own folder, and their checksums are compared with those below. Their versions fit the
# Hadoop of the pinned PySpark.
set -eu
cd "$(dirname "$0")/.."

jars=$(${PYTHON:-.venv/bin/python} -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("pyspark").origin).parent / "jars")')
fits() {
    (cd "$jars" && sha256sum --check --status 2>/dev/null) <<'SUMS'
66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa  hadoop-aws-3.5.0.jar
db4b55f24ad1b4e70f17eb1717a4de76a8dadc5a27d764be7c44ff67b2c1c677  bundle-2.35.4.jar
SUMS
}

if fits; then exit 0; fi
command -v mvn >/dev/null || requirements/system.sh maven
command -v mvn >/dev/null || exit 1
echo "Installing Spark's connector to S3 (690 MB) ..."
rm -f "$jars/hadoop-aws-3.5.0.jar" "$jars/bundle-2.35.4.jar"
for artifact in org.apache.hadoop:hadoop-aws:3.5.0 software.amazon.awssdk:bundle:2.35.4; do
    mvn --quiet --batch-mode dependency:copy -Dartifact="$artifact" -DoutputDirectory="$jars"
done
fits || { rm -f "$jars/hadoop-aws-3.5.0.jar" "$jars/bundle-2.35.4.jar"
    echo "Spark's connector to S3 has wrong checksums, and was removed again." >&2; exit 1; }
