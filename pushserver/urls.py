from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from pushserver.console.health.snapshot import healthz, readyz
from pushserver.console.pages.alerts import choose_level, send_test, show_alerts
from pushserver.console.pages.documentation import show_documentation
from pushserver.console.pages.drain import change_drain, show_drain
from pushserver.console.pages.find import find, found, search_facts
from pushserver.console.pages.peers import peer_urls
from pushserver.console.pages.second_factor import set_up
from pushserver.console.pages.timeline import show_request_timeline, show_timeline
from pushserver.console.pages.user import forget_user, show_user
from pushserver.console.parts import parts
from pushserver.metrics import metrics

urlpatterns = [
    path("admin/search/<app_label>/<model_name>/", admin.site.admin_view(search_facts), name="search_facts"),
    path("admin/find/", admin.site.admin_view(find), name="find"),
    path("admin/found/<term>/", admin.site.admin_view(found), name="found"),
    path("admin/users/<object_id>/", admin.site.admin_view(show_user), name="user"),
    path("admin/users/<key_hash_hex>/forget/", admin.site.admin_view(forget_user), name="forget_user"),
    path(
        "admin/timelines/requests/<object_id>/",
        admin.site.admin_view(show_request_timeline),
        name="request_timeline",
    ),
    path("admin/timelines/<object_id>/", admin.site.admin_view(show_timeline), name="timeline"),
    path("admin/drain/", admin.site.admin_view(show_drain), name="drain"),
    path("admin/drain/<operation>/", admin.site.admin_view(change_drain), name="change_drain"),
    path("admin/alerts/", admin.site.admin_view(show_alerts), name="alerts"),
    path("admin/alerts/level/<slug:kind>/", admin.site.admin_view(choose_level), name="alert_level"),
    path("admin/alerts/test/", admin.site.admin_view(send_test), name="test_alerts"),
    *peer_urls(),
    path("admin/documentation/", admin.site.admin_view(show_documentation), name="documentation_list"),
    path("admin/documentation/<path:name>/", admin.site.admin_view(show_documentation), name="documentation"),
    path("admin/second-factor/", admin.site.admin_view(set_up), name="second_factor"),
    path("admin/reports/", include("pushserver.console.reports.pages")),
    re_path(  # the lists of the release before, as people have bookmarked them
        "^admin/(?P<network>[a-z]+)_bridge/canaryrun/",
        RedirectView.as_view(url="/admin/pushserver/canaryrun/?network__exact=%(network)s"),
    ),
    path("admin/", admin.site.urls),
    path("api/", include("pushserver.api.urls")),
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    *(path(route, include(module)) for part in parts() for route, module in part.url_modules.items()),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]

handler400 = "pushserver.console.pages.middleware.bad_request"
handler403 = "pushserver.console.pages.middleware.forbidden"
handler404 = "pushserver.console.pages.middleware.not_found"
handler500 = "pushserver.console.pages.without_database.server_error"
