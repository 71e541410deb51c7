"""Check for the optional parts that runs need: the dependency group `reports`, Java, and an account with a name."""

import importlib.util
import os
import pwd
import shutil
from pathlib import Path

PACKAGES = {"pyspark": "PySpark", "pyarrow": "PyArrow"}

NO_NAME = (
    "Account {uid} has no name, and Spark needs one: no reports. Run reports as an account with a name, or add one to "
    "/etc/passwd: push:x:{uid}:{gid}::/tmp:/bin/false"
)


def missing() -> str:
    """Return a line that names the missing parts and how to install them, or an empty text if none is missing."""
    lacking = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        return (
            f"{' and '.join(lacking)} {verb} not installed: no reports. `make install-reports` brings them, and Java."
        )
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    if shutil.which(java) is None:
        return "Java 17 or 21 is missing: no reports. `make install-reports` installs it, or names its package."
    return "" if _has_name(os.geteuid()) else NO_NAME.format(uid=os.geteuid(), gid=os.getegid())


def _has_name(uid: int) -> bool:
    """Return whether an account has a name, without which Hadoop's part of Spark does not start."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
