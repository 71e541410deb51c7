"""Commands of the reports. Without PyArrow their imports would fail, so they end with one line that names it instead.

The check is here and not in `spark_reports.management`, because `migrate` imports that package of every app.
"""

import importlib.util

from spark_reports.running.parts import missing

if importlib.util.find_spec("pyarrow") is None:
    raise SystemExit(missing())
