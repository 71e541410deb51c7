"""Audit of the locked packages for licences and known vulnerabilities: `make audit`.

Licences come from the metadata of installed packages, without a network. Vulnerabilities come from pip-audit, which
requests them from pypi.org, or from an OSV service at AUDIT_OSV_URL. A mirror that has only packages cannot answer.
pip-audit then skips packages, and here a skipped package is a failure of its own.

Exit status: 0 no finding, 1 a licence or vulnerability needs a review, 2 some packages could not be looked up.
"""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOCKS = ("run", "reports", "dev")
OSV_URL = os.environ.get("AUDIT_OSV_URL", "")
# A licence text must contain at least one of these words. A package may offer a choice of licences.
ACCEPTED = re.compile(
    r"\b(MIT|MIT-0|0?BSD|Apache|PSF|Python Software Foundation|ISC|Unlicense|MPL|Mozilla Public License|LGPL)\b",
    re.IGNORECASE,
)
REFUSED = re.compile(r"\b(AGPL|SSPL|GPL|Proprietary)\b", re.IGNORECASE)
# Packages whose licence files a person has read, because their metadata are incomplete.
KNOWN = {"qrcode": "BSD-3-Clause, with a notice of the MIT licence for what it was ported from"}


def locked(lock: str) -> list[str]:
    """Return the names of the packages in a lock."""
    lines = (HERE / f"{lock}.txt").read_text(encoding="utf-8").splitlines()
    return sorted({line.split("==")[0] for line in lines if re.match(r"[a-zA-Z0-9]", line)})


def licence(name: str) -> str | None:
    """Return the licence in a package's metadata, or None for a package that this machine does not need."""
    try:
        metadata: Any = distribution(name).metadata
    except PackageNotFoundError:
        return None
    classifiers = metadata.get_all("Classifier") or []
    licenses = "; ".join(each.rsplit(" :: ", 1)[-1] for each in classifiers if each.startswith("License ::"))
    return metadata.get("License-Expression") or licenses or (metadata.get("License") or "").split("\n")[0][:60]


def is_accepted(name: str, text: str) -> bool:
    """Return whether a licence is acceptable for this server."""
    if name in KNOWN:
        return True
    without_lgpl = re.sub(r"LGPL", "", text, flags=re.IGNORECASE)
    return bool(ACCEPTED.search(text)) and not REFUSED.search(without_lgpl)


def show_licences() -> list[str]:
    """Print the licence of each package that the server needs, and return the names of packages that need a review."""
    doubtful = []
    for name in locked("run"):
        text = licence(name)
        if text is None:
            print(f"  {name:<28}(not needed on this machine)")
            continue
        mark = "" if is_accepted(name, text) else "  <-- needs a review"
        doubtful += [name] if mark else []
        print(f"  {name:<28}{KNOWN.get(name, text)}{mark}")
    return doubtful


def audit(lock: str) -> list[dict[str, Any]]:
    """Return pip-audit's results for the packages of a lock: the vulnerabilities of each, or why it was skipped."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", f"{HERE / lock}.txt"]
    command += ["--disable-pip", "--require-hashes", "--format", "json", "--progress-spinner", "off"]
    command += ["--vulnerability-service", "osv", "--osv-url", OSV_URL] if OSV_URL else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]
        return [{"name": name, "skip_reason": reason} for name in locked(lock)]
    return found


def show_vulnerabilities() -> tuple[list[str], list[str]]:
    """Print the known vulnerabilities. Return the vulnerable packages, and the skipped ones."""
    packages = {package["name"]: package for lock in LOCKS for package in audit(lock)}
    vulnerable = [name for name, package in packages.items() if package.get("vulns")]
    skipped = [name for name, package in packages.items() if "skip_reason" in package]
    for name in vulnerable:
        for each in packages[name]["vulns"]:
            fixed = ", ".join(each["fix_versions"]) or "no version yet"
            print(f"  {name} {packages[name]['version']}: {each['id']}, fixed in {fixed}")
    print(f"  {len(packages)} packages: {len(vulnerable)} vulnerable, {len(skipped)} not looked up")
    if skipped:
        print(f"  The first of these: {skipped[0]}: {packages[skipped[0]]['skip_reason'][:200]}")
        print("  pip-audit needs the JSON API of https://pypi.org, or an OSV service at AUDIT_OSV_URL.")
    return vulnerable, skipped


def main() -> int:
    """Print both lists, and return the exit status."""
    print("Licences:")
    doubtful = show_licences()
    print("Vulnerabilities:")
    vulnerable, skipped = show_vulnerabilities()
    return 1 if doubtful or vulnerable else 2 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
