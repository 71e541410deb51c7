"""Login to the console, its second factor, and the traces of a visit."""

import re
import time
from base64 import b32encode
from datetime import timedelta
from secrets import token_urlsafe

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django_otp.oath import TOTP
from django_otp.plugins.otp_totp.models import TOTPDevice

from pushserver.console import tasks
from pushserver.console.models import AccessRecord, FailedLogin
from pushserver.console.pages.logins import OF_BOTH, NoWordOfOurs
from pushserver.console.pages.second_factor import KEY_IN_SESSION
from tests.limits.page import limit
from tests.rig import rows
from tests.rig.logs import capture_logs

PASSWORD = "correct horse battery staple"
LOGIN = "/admin/login/"
pytestmark = pytest.mark.django_db


@pytest.fixture
def person():
    return User.objects.create_superuser("anna", password=PASSWORD)


def log_in(client: Client, password: str = PASSWORD, code: str = "") -> bool:
    response = client.post(LOGIN, {"username": "anna", "password": password, "code": code, "next": "/admin/"})
    return response.status_code == 302


def code_of(device: TOTPDevice) -> str:
    totp = TOTP(device.bin_key, device.step, device.t0, device.digits, device.drift)
    totp.time = time.time()
    return f"{totp.token():06}"


def test_a_login_with_a_second_factor_requires_its_code_once(client, person):
    """A session from before the second factor is asked to log in again."""
    assert log_in(client)
    assert client.get("/admin/").status_code == 200
    device = TOTPDevice.objects.create(user=person, confirmed=True)
    assert client.get("/admin/").status_code == 302

    assert not log_in(client)
    assert not log_in(client, code="123456" if code_of(device) != "123456" else "654321")
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
    code = code_of(device)
    assert log_in(client, code=code)
    assert client.get("/admin/").status_code == 200
    assert not log_in(Client(), code=code)


@pytest.mark.parametrize("is_required", [False, True])
def test_a_second_factor_is_set_up_by_proving_it_first_where_it_is_required(client, person, settings, is_required):
    settings.REQUIRE_SECOND_FACTOR = is_required
    log_in(client)
    elsewhere = client.get("/admin/registrations/registration/")
    assert (elsewhere.status_code, getattr(elsewhere, "url", "")) == (
        (302, reverse("second_factor")) if is_required else (200, "")
    )
    page = client.get(reverse("second_factor"))
    device = TOTPDevice(key=client.session[KEY_IN_SESSION])
    assert not TOTPDevice.objects.exists()
    assert b'src="data:image/svg+xml;base64,' in page.content
    assert b32encode(device.bin_key) in page.content  # for people who cannot scan the code; it is never shown again

    assert b"not the code" in client.post(reverse("second_factor"), {"code": "abcdef"}).content
    assert client.post(reverse("second_factor"), {"code": code_of(device)}).status_code == 302

    assert TOTPDevice.objects.get().confirmed
    assert client.get("/admin/registrations/registration/").status_code == 200
    assert not log_in(Client())


def test_guessing_codes_locks_out_as_guessing_passwords_does(client, person):
    device = TOTPDevice.objects.create(user=person, confirmed=True)
    for _ in range(OF_BOTH):
        TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
        assert not log_in(client, code="000000" if code_of(device) != "000000" else "111111")
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)

    assert not log_in(client, code=code_of(device))
    FailedLogin.objects.all().delete()

    assert log_in(client, code=code_of(device))


@pytest.mark.parametrize("name", ["anna", "nobody"])
def test_the_page_of_a_lockout_names_its_duration_and_not_whether_the_name_exists(client, person, name):
    wrong = {"username": name, "password": "wrong"}
    *_, last = [client.post(LOGIN, wrong) for _ in range(OF_BOTH)]

    assert last.status_code == 429
    assert re.findall(r'<p id="refused"[^>]*>(.*?)</p>', last.content.decode()) == [
        "Too many wrong logins. Wait 15 minutes, or ask an admin to remove the failed logins."
    ]
    assert name not in last.content.decode()


@pytest.mark.parametrize("name", [token_urlsafe(10_000), "a" * 1_000_000, "\ufdfa" * 150, "a\0b", b"\xff\xed\xa0\x80"])
def test_no_name_is_too_odd_to_be_refused(client, name):
    """One that no account can have is neither checked nor kept."""
    response = client.post(LOGIN, {"username": name, "password": PASSWORD})
    assert response.status_code == 200
    assert response.context["form"].errors
    assert all(len(failed.username) <= 150 for failed in FailedLogin.objects.all())


def test_pages_allow_no_inline_script_no_frame_and_no_base_and_are_kept_by_nobody(admin_client):
    for page in ("/admin/login/", "/admin/", "/healthz", "/readyz", "/api/v1/status"):
        headers = admin_client.get(page, follow=True).headers
        assert "no-store" in headers["Cache-Control"]
        if page.startswith("/admin/"):
            policy = headers["Content-Security-Policy"]
            assert "script-src 'self' 'unsafe-eval';" in policy + ";"
            assert "frame-ancestors 'none'" in policy
            assert "base-uri 'none'" in policy
    assert admin_client.post("/admin/logout/").headers["Clear-Site-Data"] == '"cache", "storage"'


def test_a_session_ends_however_much_somebody_works(client, person, settings, monkeypatch):
    settings.SESSION_MAX_SECONDS = 3600
    now = time.time()
    assert log_in(client)
    assert client.get("/admin/").status_code == 200
    for minutes, is_in in ((30, True), (59, True), (61, False)):
        monkeypatch.setattr(time, "time", lambda at=now + 60 * minutes: at)
        assert (client.get("/admin/").status_code == 200) is is_in


def test_a_password_is_more_than_the_name_of_the_server():
    for password in ("StatusPushServer1", "gorush-admin-push"):
        with pytest.raises(ValidationError):
            NoWordOfOurs().validate(password)
    for password in ("correct horse battery staple", "the waku server of my aunt"):
        NoWordOfOurs().validate(password)


def test_logins_are_logged_and_never_the_name_of_a_failed_one(client, person):
    with capture_logs() as logged:
        log_in(client, "a wrong password")
        log_in(client)
        client.post("/admin/logout/")
    assert [(entry["event"], entry.get("user_id")) for entry in logged if entry["event"].startswith("log")] == [
        ("login_failed", None),
        ("login", person.pk),
        ("logout", person.pk),
    ]
    assert "anna" not in repr(logged)
    assert "wrong password" not in repr(logged)


def test_every_opened_row_is_noted_with_who_opened_it(admin_client):
    registration = rows.make_registration()
    envelope = rows.make_envelope()

    admin_client.get("/admin/registrations/registration/")
    admin_client.get(f"/admin/registrations/registration/{registration.pk}/change/")
    admin_client.get(f"/admin/waku_bridge/inboundenvelope/{bytes(envelope.hash).hex()}/change/")
    admin_client.get("/admin/registrations/registration/99999999/change/")

    opened = AccessRecord.objects.order_by("pk").values_list("username", "page", "object_id")
    assert list(opened) == [
        ("admin", "registrations.registration", str(registration.pk)),
        ("admin", "waku_bridge.inboundenvelope", bytes(envelope.hash).hex()),
    ]


def test_roles_look_act_and_manage():
    may = {
        role.name: {f"{p.content_type.app_label}.{p.codename}" for p in role.permissions.select_related("content_type")}
        for role in Group.objects.all()
    }

    assert may["support"] < may["operator"] < may["admin"]
    assert {"registrations.view_registration", "notifications.view_attempt"} <= may["support"]
    assert not [name for name in may["support"] if ".view_" not in name]
    acts = {"notifications.operate_channel", "notifications.change_gatewayerrorrule", "admin.view_logentry"}
    assert acts <= may["operator"] - may["support"]
    staff = [name for name in may["operator"] if name.startswith(("auth.", "pushserver.", "otp_totp."))]
    assert sorted(staff) == [f"pushserver.{may}" for may in ("operate_incident", "view_canaryrun", "view_incident")]
    assert {"auth.add_user", "otp_totp.delete_totpdevice", "pushserver.view_accessrecord"} <= may["admin"]

    for name in ("registrations.delete_registration", "notifications.change_attempt", "waku_bridge.add_deadletter"):
        assert name not in may["admin"]
    # Every permission of ours belongs to a role or to a table that nobody edits.
    ours = Permission.objects.filter(content_type__app_label__in=("registrations", "notifications", "waku_bridge"))
    for permission in ours.exclude(group__name="admin"):
        assert permission.codename.split("_")[0] in {"add", "change", "delete"}


# Retention ------------------------------------------------------------------------------------------------------------


@limit("openings of records: {setting}")
def test_the_access_log_is_kept_as_long_as_the_setting_says(setting):
    keep = timedelta(days=getattr(django_settings, setting))
    _, young = (
        AccessRecord.objects.create(username="ann", page="user", object_id="1", at=timezone.now() - keep + left)
        for left in (timedelta(minutes=-1), timedelta(minutes=1))
    )
    tasks.purge_visits()
    assert AccessRecord.objects.get() == young
    assert tasks.purge_visits.name in {entry["task"] for entry in django_settings.BEAT_SCHEDULE.values()}


@pytest.mark.parametrize("make", [rows.make_canary_run, rows.make_xmpp_canary_run])
def test_runs_of_a_canary_are_kept_for_a_week(make):
    old, young = (
        make(state="passed", started_at=timezone.now() - timedelta(days=7, minutes=minutes)) for minutes in (1, -1)
    )
    tasks.purge_visits()
    assert list(type(old).objects.all()) == [young]


def test_sessions_that_ended_and_failed_logins_that_lock_nobody_out_are_removed(client, person):
    ago = timezone.now() - timedelta(seconds=1)
    client.force_login(person)
    Session.objects.create(session_key="old", session_data="", expire_date=ago)
    for name in ("old", "young"):
        Client().post(LOGIN, {"username": name, "password": "wrong", "code": "123456"})
    FailedLogin.objects.filter(username="old").update(last_at=ago - FailedLogin.COUNTED)

    tasks.purge_visits()

    assert client.get("/admin/").status_code == 200
    assert not Session.objects.filter(session_key="old").exists()
    assert FailedLogin.objects.get().username == "young"
    with capture_logs() as logs:
        tasks.purge_visits()
    assert logs == []


def test_neither_password_nor_code_is_kept_or_logged_with_a_failed_login(caplog):
    """A password in the field of the name is not logged either."""
    Client().post(LOGIN, {"username": "swordfish", "password": "hunter2-hunter2", "code": "918273"})

    kept = FailedLogin.objects.get()
    assert "login_failed" in caplog.text
    assert [typed for typed in ("hunter2", "918273") if typed in str(vars(kept))] == []
    assert [typed for typed in ("swordfish", "hunter2", "918273") if typed in f"{caplog.text} {kept}"] == []
