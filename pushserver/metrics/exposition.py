"""`/metrics` of the web server: the counts of the processes of this machine, and the gauges of database and queues."""

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kit.exposition import Counted, is_authentic
from kit.processes import once
from pushserver.metrics.stock import Stock


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with all metrics.

    Without METRICS_TOKEN there is no such page, except with DEBUG.
    """
    if not settings.METRICS_TOKEN and not settings.DEBUG:
        raise Http404
    if settings.METRICS_TOKEN and not is_authentic(request.headers.get("Authorization", "")):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    # The collector names the format that it reads in the header.
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(_everything()), content_type=content_type)


@once
def _everything() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Counted(settings.METRICS_DIR))
    registry.register(Stock())
    return registry
