"""The names under which the web server is asked: any for what machines ask, those of ALLOWED_HOSTS for people."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

PATHS = {"/healthz", "/readyz", "/metrics"}


class AnyHostMiddleware:
    """Answers probes and Prometheus whatever they call this server, such as the address of a pod.

    Their answers hold no links, so that a made-up Host misleads nobody. It stands before whatever asks for the Host.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path in PATHS:
            request.META["HTTP_HOST"] = "localhost"
        return self._get_response(request)
