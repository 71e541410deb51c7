from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.routers import SimpleRouter

from pushserver.api import views
from pushserver.api.schema import show_schema
from pushserver.console.parts import parts

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
