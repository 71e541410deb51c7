#!/bin/sh
# Installs the packages of a lock file into .venv:  requirements/install.sh run|reports|dev
# Before it writes anything, it checks the machine with machine.sh. It installs uv from its own lock into .uv. It changes
# nothing outside this checkout, except that it may install Debian's package python3-venv. It is quick when .venv is up
# to date.
set -eu
cd "$(dirname "$0")/.."
umask 022   # root's embedded PostgreSQL runs under another account and has to read .venv

fail() {
    echo "$*" >&2
    exit 1
}

# Runs a command that fetches packages. Its output goes to .uv/log, and a failure prints one line.
fetch() {
    what=$1
    shift
    if "$@" >.uv/log 2>&1; then return; fi
    if grep -Eqi 'connect|resolve|network|timed out|error sending request|could not find a version' .uv/log; then
        from=$(echo "${index:-${PIP_INDEX_URL:-the package index}}" | sed 's#//[^/@]*@#//#')   # without a password
        fail "$what cannot be fetched from $from: connect to a network, or set PIP_INDEX_URL to a mirror (details: .uv/log)."
    fi
    fail "$what cannot be installed: $(grep -v '^ *$' .uv/log | tail -n 1) (details: .uv/log)."
}

# Without bytecode on disk, every process compiles all its imports, which takes longer than the rest of its start. Some
# processes cannot write bytecode (PYTHONDONTWRITEBYTECODE, another account). So our own code is compiled each time.
compile_own() {
    .venv/bin/python -m compileall -q bench embedded kit notifications pushserver registrations spark_reports tests waku_bridge xmpp_bridge || true
}

# Each of run, reports and dev contains the one before it. An installed larger lock stays.
lock=$1
if [ "$lock" = run ] && [ -e .venv/.lock-reports.txt ]; then lock=reports; fi
if [ -e .venv/.lock-dev.txt ]; then lock=dev; fi
if [ -x .uv/bin/uv ] && [ -x .venv/bin/python ] && cmp -s "requirements/$lock.txt" ".venv/.lock-$lock.txt" &&
    [ -e .venv/.compiled ]; then
    compile_own
    exit 0
fi

problem_with() {   # the first fault of this machine because of which the server cannot run, or nothing
    LOCK=$lock requirements/machine.sh "$@" | sed -n 's/^!! //p' | sed 1q
}
problem=$(problem_with system python folder disk memory)
[ -z "$problem" ] || fail "$problem"
python=$(requirements/machine.sh --python)
if [ -n "$(problem_with venv)" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing $python-venv ..."
    requirements/system.sh --package "$python-venv" || true
fi
problem=$(problem_with venv)
[ -z "$problem" ] || fail "$problem"

# Caches are in the home folder, or in the checkout if there is no home folder.
if [ -z "${HOME:-}" ] || [ ! -w "$HOME" ]; then
    UV_CACHE_DIR=${UV_CACHE_DIR:-$PWD/.uv/cache}
    PIP_NO_CACHE_DIR=1
    export UV_CACHE_DIR PIP_NO_CACHE_DIR
fi

if ! cmp -s requirements/uv.txt .uv/lock.txt; then
    echo "Installing uv ..."
    "$python" -m venv --clear .uv
    fetch uv .uv/bin/python -m pip install --retries 2 --timeout 20 --disable-pip-version-check --require-hashes \
        -r requirements/uv.txt
    cp requirements/uv.txt .uv/lock.txt
fi

# uv does not read pip's configuration, so it gets the mirror and the certificates from here. `pip config get` does not
# read /etc/pip.conf, but `pip config list` does.
from_pip() {
    .uv/bin/python -m pip --disable-pip-version-check config list 2>/dev/null | sed -n "s/^$1='\(.*\)'\$/\1/p" | sed 1q
}
index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(from_pip global.index-url)}}
if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi
certificates=${SSL_CERT_FILE:-${PIP_CERT:-$(from_pip global.cert)}}
if [ -n "$certificates" ]; then export SSL_CERT_FILE="$certificates"; fi

export UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1
.venv/bin/python -c '' 2>/dev/null || .uv/bin/uv venv --quiet --relocatable --clear --python "$(command -v "$python")" .venv
echo "Installing Python packages ..."
fetch "Python packages" .uv/bin/uv pip sync --quiet --compile-bytecode --python .venv/bin/python "requirements/$lock.txt"
touch .venv/.compiled
cp "requirements/$lock.txt" ".venv/.lock-$lock.txt"
compile_own
