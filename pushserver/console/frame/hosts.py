"""Host names of requests: probes and metrics accept any name, and all other pages those of ALLOWED_HOSTS."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

PATHS = {"/healthz", "/readyz", "/metrics"}


class AnyHostMiddleware:
    """Accepts every Host from probes and Prometheus, such as the address of a pod.

    Their answers have no links, so a forged Host misleads nobody. It stands before the middleware that reads the Host.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path in PATHS:
            request.META["HTTP_HOST"] = "localhost"
        return self._get_response(request)
