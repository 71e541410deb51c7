"""Host names of requests: what only machines call accepts any name, and all other pages those of ALLOWED_HOSTS."""

from django.http import HttpRequest
from django.utils.deprecation import MiddlewareMixin

PATHS = {"/healthz", "/readyz", "/metrics"}
HOOKS = "/hooks/"


class AnyHostMiddleware(MiddlewareMixin):
    """Accepts every Host from probes, Prometheus and hooks of gateways, such as the address of a pod, or the name of a
    service within a cluster. Hooks have secrets of their own.

    Their answers have no links, so a forged Host misleads nobody. It stands before the middleware that reads the Host.
    """

    def process_request(self, request: HttpRequest) -> None:
        if request.path in PATHS or request.path.startswith(HOOKS):
            request.META["HTTP_HOST"] = "localhost"
