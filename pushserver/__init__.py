"""The server put together: settings, Celery, console, API, health indicators and metrics of all apps.

See docs/architecture.md.
"""

import gc

# Hundreds of messages on their way are thousands of objects. With Python's own 700 every batch looked through them
# again and again: 6 % of the time of a saturated one, 19 % of that of its POSTs, and a tenth of the time of a start.
gc.set_threshold(20_000, 20, 20)

from pushserver.celery import app as celery_app  # noqa: E402 - what it imports is counted, too

__all__ = ["celery_app"]
