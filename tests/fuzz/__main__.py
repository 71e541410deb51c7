"""Fuzzer of one target, guided by coverage: `python -m tests.fuzz TARGET [options of libFuzzer]`.

It begins with the corpus and with every case that ever crashed. It writes a crash to tests/fuzz/cases/TARGET/, where
`test_cases.py` finds it from then on. Without arguments it prints the names of the targets.
"""

import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LARGEST_BYTES = 4096


def set_up() -> None:
    """Give the required settings values, none of which is used."""
    import django

    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "pushserver.settings",
        "DATA_DIR": tempfile.mkdtemp(prefix="pushserver-fuzz-"),
        "DATABASE_URL": "postgresql://127.0.0.1/none",
        "SECRET_KEY": "fuzzing-only-secret-key-that-is-long-enough-for-the-checks",
        "SERVER_PRIVATE_KEY": "02" * 32,
        "FIELD_ENCRYPTION_KEYS": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    }
    django.setup()


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["waku_bridge", "notifications", "xmpp_bridge"]):
        set_up()
        from tests.fuzz.targets import TARGETS
    if len(sys.argv) < 2:
        print(*TARGETS, sep="\n")
        return
    name, *options = sys.argv[1:]
    cases, corpus = HERE / "cases" / name, HERE / "corpus" / name
    cases.mkdir(parents=True, exist_ok=True)
    found = os.environ.get("FUZZ_FOUND") or tempfile.mkdtemp(prefix=f"fuzz-{name}-")
    atheris.Setup(
        [
            *(sys.argv[0], f"-artifact_prefix={cases}/", f"-max_len={LARGEST_BYTES}", "-print_final_stats=1"),
            *options,
            *map(str, [found, *(folder for folder in (corpus, cases) if folder.exists())]),
        ],
        TARGETS[name],
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
