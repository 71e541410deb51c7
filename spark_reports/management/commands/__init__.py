"""Commands of the reports. Without PyArrow their imports would fail, so one line tells that it is missing.

The check is here and not in `spark_reports.management`, which `migrate` imports of every app.
"""

import importlib.util

from spark_reports.running.parts import missing

if importlib.util.find_spec("pyarrow") is None:
    raise SystemExit(missing())
