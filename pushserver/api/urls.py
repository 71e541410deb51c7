"""URLs of the API, and its schema, which anybody may read. It is the same for all, so each process makes it once."""

from functools import cache

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, include, path
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.routers import SimpleRouter

from pushserver.api import views
from pushserver.console.parts import parts


@cache
def _as_yaml() -> bytes:
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # it has no types
    return bytes(OpenApiYamlRenderer().render(schema))  # type: ignore[no-untyped-call]


@require_safe
@cache_control(public=True, max_age=3600)
def show_schema(_request: HttpRequest) -> HttpResponse:
    """Show the schema of the API as YAML."""
    return HttpResponse(_as_yaml(), content_type=f"{OpenApiYamlRenderer.media_type}; charset=utf-8")


router = SimpleRouter()
router.register("registrations", views.Registrations, basename="registration")
router.register("notifications", views.Notifications, basename="notification")
router.register("channels", views.Channels, basename="channel")
router.register("canary", views.CanaryRuns, basename="canary")
router.register("xmpp-canary", views.XmppCanaryRuns, basename="xmpp_canary")
router.register("error-rates", views.ErrorRates, basename="error-rate")
router.register("token-churn", views.TokenChurns, basename="token-churn")
router.register("anomalies", views.Anomalies, basename="anomaly")

version_1: list[URLPattern | URLResolver] = [
    path("status/", views.Status.as_view(), name="status"),
    *router.urls,
    *(path("", include(part.api_urls)) for part in parts() if part.api_urls),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/", include(version_1)),
    path("schema", show_schema, name="api_schema"),
    path("schema/", show_schema),  # as people type it
    path("docs/", SpectacularSwaggerSplitView.as_view(url_name="api_schema"), name="api_docs"),
]
