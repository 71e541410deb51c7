from django.urls import path
from rest_framework.routers import SimpleRouter

from xmpp_bridge.api import canary, devices

router = SimpleRouter()
router.register("xmpp-canary", canary.XmppCanaryRuns, basename="xmpp_canary")
urlpatterns = [
    path("xmpp-devices/register/", devices.Register.as_view(), name="register_device"),
    path("xmpp-devices/unregister/", devices.Unregister.as_view(), name="unregister_device"),
    *router.urls,
]
