#!/bin/sh
# Runs the tests of code that parses untrusted bytes on the distribution's own Python. It may be older than the Python
# of .venv, and a codec that works on one patch release has failed on another. The packages go to .uv/distribution.
set -eu
cd "$(dirname "$0")/.."
python=/usr/bin/python3
if ! [ -x "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "The distribution has no Python that this server supports." >&2
    exit "${REQUIRE_ALL:-0}"
fi
if [ "$("$python" -V)" = "$(.venv/bin/python -V)" ]; then
    echo "The distribution's Python is the one of .venv: the suite runs on it."
    exit
fi
.uv/bin/uv venv --quiet --clear --python "$python" .uv/distribution
VIRTUAL_ENV="$PWD/.uv/distribution" .uv/bin/uv pip sync --quiet requirements/dev.txt
"$python" -V
.uv/distribution/bin/python -m pytest -q -n "${PROCESSES:-2}" \
    kit notifications/gateways waku_bridge/codec waku_bridge/tests/test_node.py xmpp_bridge/codec "$@"
