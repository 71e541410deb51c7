"""gorush's statistics: `/metrics` for Prometheus, and counts of its own answers at `/sys/stats`.

The real gorush adds metrics about Go and its process, which are not imitated.
"""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from embedded.gorush.gateway import Counters

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"


def as_prometheus(counters: Counters) -> str:
    return "".join(
        f"# HELP gorush_{name} {text}\n# TYPE gorush_{name} {kind}\ngorush_{name} {value}\n"
        for name, text, kind, value in _metrics(counters)
    )


def _metrics(counters: Counters) -> Iterator[tuple[str, str, str, int]]:
    """Yield name, help, type and value of each metric, by name. They have no labels."""
    yield "android_fail", "Number of android fail count", "counter", counters.android.push_error
    yield "android_success", "Number of android success count", "counter", counters.android.push_success
    yield "busy_workers", "Length of busy workers", "gauge", 0
    yield "failure_tasks", "Length of Failure Tasks", "counter", counters.failure_tasks
    yield "huawei_fail", "Number of huawei fail count", "counter", counters.huawei.push_error
    yield "huawei_success", "Number of huawei success count", "counter", counters.huawei.push_success
    yield "ios_error", "Number of iOS fail count", "counter", counters.ios.push_error
    yield "ios_success", "Number of iOS success count", "counter", counters.ios.push_success
    yield "submitted_tasks", "Length of Submitted Tasks", "counter", counters.submitted_tasks
    yield "success_tasks", "Length of Success Tasks", "counter", counters.success_tasks
    yield "total_push_count", "Number of push count", "counter", counters.total_count


class Responses:
    """Counts of answers since the start. Like the real gorush, it counts every answer as 200.

    Like there, the "current" counts start again every second.
    """

    def __init__(self) -> None:
        self._started = time.time()
        self._total, self._current, self._second = 0, 0, 0
        self._seconds = 0.0

    def count(self, seconds: float) -> None:
        self._begin_second()
        self._current += 1
        self._total += 1
        self._seconds += seconds

    def as_dict(self) -> dict[str, Any]:
        self._begin_second()
        now, average = time.time(), self._seconds / self._total if self._total else 0.0
        return {
            "pid": os.getpid(),
            "hostname": "",
            "uptime": f"{now - self._started}s",
            "uptime_sec": now - self._started,
            "time": str(datetime.fromtimestamp(now, UTC)),
            "unixtime": int(now),
            "status_code_count": {"200": self._current} if self._current else {},
            "total_status_code_count": {"200": self._total} if self._total else {},
            "count": self._current,
            "total_count": self._total,
            "total_response_time": f"{self._seconds}s",
            "total_response_time_sec": self._seconds,
            "total_response_size": 0,
            "average_response_size": 0,
            "average_response_time": f"{average}s",
            "average_response_time_sec": average,
            "total_metrics_counts": {},
            "average_metrics_timers": {},
        }

    def _begin_second(self) -> None:
        if (second := int(time.time())) != self._second:
            self._second, self._current = second, 0


@web.middleware
async def count_response(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count a response, unless it is for /dev/ or a redirect: gin redirects before gorush's own code runs."""
    started = time.monotonic()
    response = await handler(request)
    if not request.path.startswith("/dev/") and response.status != HTTPStatus.TEMPORARY_REDIRECT:
        request.app[RESPONSES].count(time.monotonic() - started)
    return response


RESPONSES: web.AppKey[Responses] = web.AppKey("responses", Responses)
