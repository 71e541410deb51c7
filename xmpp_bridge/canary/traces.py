"""Rows of the canary in the tables of real traffic: its app, its devices, their pushes and their history.

All of them are found again even when a process dies during a run. Nobody else can register in the canary's app, and
each run keeps the pseudonym under which its history is stored.
"""

from collections.abc import Sequence

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from notifications.models import NotificationRequest
from registrations.models import RegistrationEvent, Route
from xmpp_bridge.identity import canary_apps
from xmpp_bridge.models import App, CanaryRun, CanaryStanza, Device

# The text of the app, which the console shows while a run is under way.
TEXT = "Canary"


def make_app() -> None:
    """Make the app that the canary registers in."""
    own = {"app_topic": settings.CANARY_DRY_RUN_TOPIC, "takes_firebase": False, "text": TEXT}
    App.objects.create(slug=canary_apps()[0], created_at=timezone.now(), **own)


def note_device(run: CanaryRun, device: Device) -> None:
    """Keep the id and the pseudonym of the run's device, because unregistering forgets the pseudonym."""
    run.device = device.pk
    run.pseudonym = device.route.pseudonym if device.route else None
    run.save(update_fields=["device", "pseudonym"])


@transaction.atomic
def remove_traces() -> None:
    """Remove the rows that any run left. While a run is under way, only that run may call this."""
    devices = list(Device.objects.select_for_update().filter(app__slug__in=canary_apps()))
    routes = Route.objects.filter(pk__in=[device.route_id for device in devices if device.route_id])
    runs = CanaryRun.objects.filter(pseudonym__isnull=False)
    pseudonyms = {*routes.values_list("pseudonym", flat=True), *runs.values_list("pseudonym", flat=True)}
    RegistrationEvent.objects.filter(pseudonym__in=[each for each in pseudonyms if each]).delete()
    _requests_for(devices).delete()
    route_ids = list(routes.values_list("pk", flat=True))
    Device.objects.filter(pk__in=[device.pk for device in devices]).delete()
    Route.objects.filter(pk__in=route_ids).delete()
    App.objects.filter(slug__in=canary_apps()).delete()
    CanaryStanza.objects.all().delete()
    CanaryRun.objects.filter(device__isnull=False).update(device=None, pseudonym=None)


def _requests_for(devices: Sequence[Device]) -> QuerySet[NotificationRequest]:
    """Return the requests to push to these devices.

    They are searched among those received since the first device registered, because only that condition has an index.
    """
    since = min((device.registered_at for device in devices), default=timezone.now())
    names = [str(device.pk) for device in devices]
    return NotificationRequest.objects.filter(received_at__gte=since, notifications__installation_id__in=names)
