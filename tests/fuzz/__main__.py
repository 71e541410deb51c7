"""Fuzzer of all targets, one after the other, led by coverage: `python -m tests.fuzz [options of libFuzzer]`.

Each target runs in a process of its own, `python -m tests.fuzz TARGET OPTIONS`. It begins with its corpus and with
every case that ever crashed, and writes a crash to tests/fuzz/cases/TARGET/, where `test_cases.py` finds it.
"""

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(folder.name for folder in (HERE / "corpus").iterdir())


def passes(name: str) -> bool:
    """Fuzz one target in another process and print its figures, or the end of its output after a failure."""
    command = [sys.executable, "-m", "tests.fuzz", name, *sys.argv[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    output = done.stdout.decode(errors="replace")
    inputs = sum(map(int, re.findall(r"stat::number_of_executed_units:\s+(\d+)", output)))
    covered = max(map(int, re.findall(r"cov: (\d+)", output)), default=0)
    print(f"{name:<14}{inputs:>12,} inputs{covered:>8} places reached", flush=True)
    if done.returncode:
        print(output[-4000:])
    return not done.returncode


def fuzz(name: str, options: list[str]) -> None:
    """Fuzz one target until libFuzzer ends this process. The required settings get values, none of which is used."""
    import atheris

    found = os.environ.get("FUZZ_FOUND") or tempfile.mkdtemp(prefix=f"fuzz-{name}-")
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "pushserver.settings",
        "DATA_DIR": tempfile.mkdtemp(prefix="pushserver-fuzz-"),
        "DATABASE_URL": "postgresql://127.0.0.1/none",
        "SECRET_KEY": "fuzzing-only-secret-key-that-is-long-enough-for-the-checks",
        "SERVER_PRIVATE_KEY": "02" * 32,
        "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    }
    with atheris.instrument_imports(include=["waku_bridge", "notifications", "xmpp_bridge"]):
        import django

        django.setup()
        from tests.fuzz.targets import TARGETS
    (cases := HERE / "cases" / name).mkdir(parents=True, exist_ok=True)
    own = [f"-artifact_prefix={cases}/", "-max_len=4096", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *own, *options, found, str(HERE / "corpus" / name), str(cases)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    if not find_spec("atheris"):
        print("Not run: fuzzing. atheris has wheels for x86-64 only (ARM64: the corpus is part of `make test`).")
        sys.exit(os.environ.get("REQUIRE_ALL") == "1")
    if {*sys.argv[1:2]} & {*NAMES}:
        fuzz(sys.argv[1], sys.argv[2:])
    failed = [each for each in NAMES if not passes(each)]
    print(f"{len(failed)} targets failed {failed or ''}")
    sys.exit(bool(failed))
