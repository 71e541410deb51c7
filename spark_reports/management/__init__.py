"""Commands of the reports. Without PyArrow their imports would fail: that is told in one line instead."""

import importlib.util

from spark_reports.parts import missing

if importlib.util.find_spec("pyarrow") is None:
    raise SystemExit(missing())
