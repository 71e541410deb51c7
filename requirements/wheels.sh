#!/bin/sh
# Checks in the package index that every locked package has a wheel for each supported machine (see machine.sh). dev.txt
# contains the other locks. PySpark and autograd-gamma are left out: they are source packages without C code, and uv
# would unpack 400 MB to read their metadata.
set -eu
cd "$(dirname "$0")/.."
export UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1
fact() { sed -n "s/.*\b$1=\([0-9]*\).*/\1/p" requirements/machine.sh | sed 1q; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk '/^[^ ]/ { skip = /^(pyspark|autograd-gamma)==/ } !skip' requirements/dev.txt >"$folder/dev.txt"

for processor in x86_64 aarch64; do
    for minor in $(seq "$(fact OLDEST)" "$(fact NEWEST)"); do
        .uv/bin/uv pip install --dry-run --quiet --target "$folder/none" --no-deps --require-hashes \
            --requirement "$folder/dev.txt" --only-binary :all: \
            --python-platform "$processor-manylinux_2_$(fact GLIBC)" --python-version "3.$minor" ||
            { echo "Not every package has a wheel for $processor and Python 3.$minor." >&2; exit 1; }
    done
done
