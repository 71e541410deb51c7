"""What the locked packages are licensed under, and whether any is known to be vulnerable: `make audit`.

Licences come from the installed packages, without a network. Vulnerabilities come from pip-audit, which asks pypi.org,
or with AUDIT_OSV_URL a service of OSV's kind. A mirror of packages alone has no such answers, and pip-audit then skips
what it could not look up; here that is no clean bill but a failure of its own.

Exit status: 0 all is well, 1 a licence or a vulnerability is to be looked at, 2 nothing is known of some packages.
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
# Of every licence that a package names, and of which it offers a choice, one word at least must be of these.
ACCEPTED = re.compile(
    r"\b(MIT|MIT-0|0?BSD|Apache|PSF|Python Software Foundation|ISC|Unlicense|MPL|Mozilla Public License|LGPL)\b",
    re.IGNORECASE,
)
REFUSED = re.compile(r"\b(AGPL|SSPL|GPL|Proprietary)\b", re.IGNORECASE)
# Looked at by a person: what the package says of itself is less than what its licence file says.
KNOWN = {"qrcode": "BSD-3-Clause, with a notice of the MIT licence for what it was ported from"}


def locked(lock: str) -> list[str]:
    """Return the names of the packages that a lock names."""
    lines = (HERE / f"{lock}.txt").read_text(encoding="utf-8").splitlines()
    return sorted({line.split("==")[0] for line in lines if re.match(r"[a-zA-Z0-9]", line)})


def licence(name: str) -> str | None:
    """Return what a package says of its licence, or None when this machine does not need it."""
    try:
        metadata: Any = distribution(name).metadata
    except PackageNotFoundError:
        return None
    classifiers = metadata.get_all("Classifier") or []
    licenses = "; ".join(each.rsplit(" :: ", 1)[-1] for each in classifiers if each.startswith("License ::"))
    return metadata.get("License-Expression") or licenses or (metadata.get("License") or "").split("\n")[0][:60]


def is_accepted(name: str, text: str) -> bool:
    """Return whether a licence asks for nothing that this server would not give."""
    if name in KNOWN:
        return True
    without_lgpl = re.sub(r"LGPL", "", text, flags=re.IGNORECASE)
    return bool(ACCEPTED.search(text)) and not REFUSED.search(without_lgpl)


def show_licences() -> list[str]:
    """Print the licence of each package that the server runs with, and return the names of those to be looked at."""
    doubtful = []
    for name in locked("run"):
        text = licence(name)
        if text is None:
            print(f"  {name:<28}(not needed on this machine)")
            continue
        mark = "" if is_accepted(name, text) else "  <-- to be looked at"
        doubtful += [name] if mark else []
        print(f"  {name:<28}{KNOWN.get(name, text)}{mark}")
    return doubtful


def audit(lock: str) -> list[dict[str, Any]]:
    """Return what pip-audit says of the packages of a lock: each with its vulnerabilities, or why it was skipped."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", f"{HERE / lock}.txt"]
    command += ["--disable-pip", "--require-hashes", "--format", "json", "--progress-spinner", "off"]
    command += ["--vulnerability-service", "osv", "--osv-url", OSV_URL] if OSV_URL else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return [{"name": name, "skip_reason": reason} for name in locked(lock)]
    return found


def show_vulnerabilities() -> tuple[list[str], list[str]]:
    """Print what is known; return the vulnerable packages, and those of which nothing is known."""
    packages = {package["name"]: package for lock in LOCKS for package in audit(lock)}
    vulnerable = [name for name, package in packages.items() if package.get("vulns")]
    skipped = [name for name, package in packages.items() if "skip_reason" in package]
    for name in vulnerable:
        for each in packages[name]["vulns"]:
            fixed = ", ".join(each["fix_versions"]) or "no version yet"
            print(f"  {name} {packages[name]['version']}: {each['id']}, fixed in {fixed}")
    print(f"  {len(packages)} packages: {len(vulnerable)} vulnerable, {len(skipped)} not looked up")
    if skipped:
        print(f"  The first that was not: {skipped[0]}: {packages[skipped[0]]['skip_reason'][:200]}")
        print("  pip-audit needs https://pypi.org (its JSON API), or a service of OSV's kind at AUDIT_OSV_URL.")
    return vulnerable, skipped


def main() -> int:
    """Print both lists."""
    print("Licences:")
    doubtful = show_licences()
    print("Vulnerabilities:")
    vulnerable, skipped = show_vulnerabilities()
    return 1 if doubtful or vulnerable else 2 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
