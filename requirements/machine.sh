#!/bin/sh
# Check of whether the server can run on this machine:  requirements/machine.sh PART...
#
#   system   Linux with glibc on x86-64 or ARM64, the only systems for which all packages have wheels
#   python   CPython 3.11 to 3.13, named python3 or, for example, python3.12
#   venv     this Python can create environments
#   folder   this account can write to the checkout
#   disk     there is space for packages (of the lock named by LOCK) and data
#   memory   there is enough for all processes
#
# Prints a line for each part: `ok` means fine, `--` optional, `!!` that the server cannot run. It writes nothing.
# `requirements/machine.sh --python` prints the Python to use, and fails without a suitable one.
set -eu
cd "$(dirname "$0")/.."
GLIBC=28                  # 2.28, of 2018: the oldest that every wheel of the locks runs with
OLDEST=11 NEWEST=13       # of CPython 3; `requires-python` says the same
CONTAINER="a container of Debian (README, \"Where it runs\")"
PYTHONS="CPython 3.11, 3.12 or 3.13"
GIB=1048576               # in KiB

fine() { echo "ok $*"; }
doubtful() { echo "-- $*"; }
unfit() { echo "!! $*"; }

system() {
    kernel=$(uname -s) processor=$(uname -m)
    case $kernel in
        Linux) ;;
        Darwin) unfit "macOS is not supported: use $CONTAINER."; return ;;
        MINGW* | MSYS* | CYGWIN*) unfit "Windows is not supported: use Debian in WSL 2, or $CONTAINER."; return ;;
        *) unfit "$kernel is not supported: use $CONTAINER."; return ;;
    esac
    case $processor in
        x86_64 | amd64 | aarch64 | arm64) ;;
        *) unfit "$processor processors are not supported: use a machine with x86-64 or ARM64."; return ;;
    esac
    glibc=$(glibc_version)
    case $glibc in
        "") unfit "This Linux has no glibc (Alpine's musl is not supported): use $CONTAINER." ;;
        2.*) if [ "${glibc#2.}" -ge "$GLIBC" ]; then fine "Linux with glibc $glibc on $processor"
             else unfit "glibc $glibc is too old, 2.$GLIBC or newer is needed: use a newer Linux, or $CONTAINER."; fi ;;
        *) fine "Linux with glibc $glibc on $processor" ;;
    esac
}

glibc_version() {   # 2.36, or nothing
    { getconf GNU_LIBC_VERSION || ldd --version; } 2>/dev/null |
        sed -n '1s/^\(glibc\|ldd (.*)\) \([0-9]*\.[0-9]*\).*$/\2/p'
}

# Prints name and version of a Python, and fails unless it is suitable. Packages have no wheels for PyPy, for
# free-threaded CPython, and for 32 bits.
describe_python() {
    "$1" -c "
import platform, sys, sysconfig
traits = [('free-threaded', sysconfig.get_config_var('Py_GIL_DISABLED')), ('32-bit', sys.maxsize < 2 ** 32)]
traits = [name for name, is_so in traits if is_so]
kind = platform.python_implementation().replace('CPython', 'Python')
print(' '.join(traits + [kind, platform.python_version()]))
sys.exit(bool(traits) or kind != 'Python' or not (3, $OLDEST) <= sys.version_info[:2] <= (3, $NEWEST))
" 2>/dev/null
}

suited_python() {
    for name in python3 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && describe_python "$name" >/dev/null; then echo "$name"; return; fi
    done
    return 1
}

python() {
    if name=$(suited_python); then fine "$(describe_python "$name") ($name)"; return; fi
    if ! command -v python3 >/dev/null; then unfit "python3 is missing: install $PYTHONS."; return; fi
    found=$(describe_python python3 || true)
    unfit "python3 is ${found:-a program that does not start}, but $PYTHONS is needed:" \
        "put one into PATH (on Fedora: dnf install python3.13), or use $CONTAINER."
}

venv() {
    if [ -x .venv/bin/python ] && cmp -s requirements/uv.txt .uv/lock.txt; then fine "environment: exists"; return; fi
    if ! name=$(suited_python); then doubtful "environment: needs another Python"; return; fi
    if "$name" -c 'import ensurepip, venv' 2>/dev/null; then fine "environment: can be created"; return; fi
    unfit "$name lacks its venv module: install it (on Debian and Ubuntu: apt-get install $name-venv)."
}

folder() {
    for part in . .uv .venv; do
        if [ -e $part ] && ! [ -w $part ]; then
            unfit "$(realpath $part) cannot be written by $(id -un): make this account the owner of the checkout," \
                "or use a checkout that it can write."
            return
        fi
    done
    fine "$PWD can be written"
}

disk() {
    data=${DATA_DIR:-.data}
    while [ ! -e "$data" ]; do data=$(dirname "$data"); done
    if ! { [ -d "$data" ] && [ -w "$data" ]; }; then
        unfit "$data cannot be written: set DATA_DIR to a folder that you can write."
        return
    fi
    free=$(df -Pk . "$data" | sed -n 's/^.* \([0-9][0-9]*\)  *[0-9]*% .*$/\1/p' | sort -n | sed 1q)
    if [ -z "$free" ]; then doubtful "disk: free space is unknown"; return; fi
    enough "disk free for packages and data" "$free" "$(packages_gib)" 5
}

packages_gib() {   # measured with a little data: 0.4 to run, 3.4 to test (half of it uv's cache)
    if [ -e ".venv/.lock-${LOCK:-run}.txt" ]; then echo 1; return; fi
    case ${LOCK:-run} in run) echo 1 ;; reports) echo 3 ;; *) echo 4 ;; esac
}

memory() {
    available=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo 2>/dev/null) || available=
    if [ -z "$available" ]; then doubtful "memory: available size is unknown"; return; fi
    enough "memory available" "$available" 1 3
}

enough() {   # name, available KiB, required GiB, GiB for reports and tests
    tenths=$(($2 * 10 / GIB))
    words="$((tenths / 10)).$((tenths % 10)) GiB $1"
    if [ "$2" -lt $(($3 * GIB)) ]; then unfit "$words: at least $3 are needed."
    elif [ "$2" -lt $(($4 * GIB)) ]; then doubtful "$words: enough for a trial; reports and tests need $4"
    else fine "$words"; fi
}

if [ "${1:-}" = --python ]; then
    suited_python
    exit
fi
for part in "$@"; do
    case $part in
        system | python | venv | folder | disk | memory) "$part" ;;
        *) echo "unknown part of a machine: $part" >&2; exit 2 ;;
    esac
done
