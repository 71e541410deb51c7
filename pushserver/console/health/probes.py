"""Probes: `/healthz` shows that this process runs, and `/readyz` whether the server processes messages, or why not.

Both are open to anybody. `/readyz` shows the indicators that decide readiness, with numbers in place of hosts, and no
user, password, path or exception text. The API shows all of them, with hosts.
"""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from pushserver.console.health.snapshot import readiness
from pushserver.console.health.verdicts import is_ready, to_json, without_hosts


@never_cache
@require_safe
def healthz(_request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def readyz(_request: HttpRequest) -> HttpResponse:
    indicators = readiness()
    response = JsonResponse(to_json(without_hosts(indicators)), status=200 if is_ready(indicators) else 503)
    # Django would log this 503 as an error every few seconds, but it is a regular answer.
    setattr(response, "_has_been_logged", True)  # noqa: B010 - undeclared, hence unknown to type checkers
    return response
