"""Login to the console, its second factor, and the traces of a visit."""

import re
import time
from base64 import b32encode
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import settings as django_settings
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from django_otp.oath import TOTP
from django_otp.plugins.otp_totp.models import TOTPDevice
from structlog.testing import capture_logs

from pushserver.console.accounts.passwords import NoWordOfOurs
from pushserver.console.accounts.second_factor import KEY_IN_SESSION
from pushserver.models import AccessRecord
from tests.rig import rows

PASSWORD = "correct horse battery staple"
LOGIN = "/admin/login/"
pytestmark = pytest.mark.django_db


@pytest.fixture
def person() -> User:
    return User.objects.create_superuser("anna", password=PASSWORD)


def log_in(client: Client, password: str = PASSWORD, code: str = "") -> bool:
    response = client.post(LOGIN, {"username": "anna", "password": password, "code": code, "next": "/admin/"})
    return response.status_code == 302


def code_of(device: TOTPDevice, *, steps_ahead: int = 0) -> str:
    totp = TOTP(device.bin_key, device.step, device.t0, device.digits, device.drift)
    totp.time = time.time() + steps_ahead * device.step
    return f"{totp.token():06}"


def test_a_password_is_enough_without_a_second_factor(client: Client, person: User) -> None:
    assert log_in(client)
    assert client.get("/admin/").status_code == 200


def test_a_login_with_a_second_factor_requires_its_code(client: Client, person: User) -> None:
    device = TOTPDevice.objects.create(user=person, confirmed=True)

    assert not log_in(client)
    assert not log_in(client, code="123456" if code_of(device) != "123456" else "654321")
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
    assert log_in(client, code=code_of(device))
    assert client.get("/admin/").status_code == 200


def test_a_code_is_good_for_one_login(client: Client, person: User) -> None:
    device = TOTPDevice.objects.create(user=person, confirmed=True)
    code = code_of(device)

    assert [log_in(Client(), code=code), log_in(Client(), code=code)] == [True, False]


def test_a_session_from_before_the_second_factor_is_asked_to_log_in_again(client: Client, person: User) -> None:
    log_in(client)
    TOTPDevice.objects.create(user=person, confirmed=True)

    assert client.get("/admin/").status_code == 302


def test_a_second_factor_is_set_up_by_proving_it(client: Client, person: User) -> None:
    log_in(client)
    page = client.get(reverse("second_factor"))
    device = TOTPDevice(key=client.session[KEY_IN_SESSION])
    assert not TOTPDevice.objects.exists()
    assert b'src="data:image/svg+xml;base64,' in page.content
    assert (
        b32encode(device.bin_key) in page.content
    )  # for people who cannot scan the code; the page never shows it again

    assert b"not the code" in client.post(reverse("second_factor"), {"code": "abcdef"}).content
    assert client.post(reverse("second_factor"), {"code": code_of(device)}).status_code == 302

    assert TOTPDevice.objects.get().confirmed
    assert client.get("/admin/").status_code == 200
    assert not log_in(Client())


def test_where_it_is_required_everybody_sets_one_up_first(client: Client, person: User, settings: Any) -> None:
    settings.REQUIRE_SECOND_FACTOR = True
    log_in(client)

    assert client.get("/admin/registrations/registration/").url == reverse("second_factor")
    client.get(reverse("second_factor"))
    client.post(reverse("second_factor"), {"code": code_of(TOTPDevice(key=client.session[KEY_IN_SESSION]))})
    assert client.get("/admin/registrations/registration/").status_code == 200


def test_guessing_passwords_locks_out_until_an_admin_ends_it(client: Client, person: User) -> None:
    for _ in range(django_settings.AXES_FAILURE_LIMIT):
        assert not log_in(client, password="wrong")
    assert not log_in(client)

    AccessAttempt.objects.all().delete()

    assert log_in(client)


def test_guessing_codes_locks_out_as_guessing_passwords_does(client: Client, person: User) -> None:
    device = TOTPDevice.objects.create(user=person, confirmed=True)
    for _ in range(django_settings.AXES_FAILURE_LIMIT):
        TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
        assert not log_in(client, code="000000" if code_of(device) != "000000" else "111111")
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)

    assert not log_in(client, code=code_of(device))
    AccessAttempt.objects.all().delete()

    assert log_in(client, code=code_of(device))


@pytest.mark.parametrize("name", ["anna", "nobody"])
def test_the_page_of_a_lockout_names_its_duration_and_not_whether_the_name_exists(
    client: Client, person: User, name: str
) -> None:
    wrong = {"username": name, "password": "wrong"}
    *_, last = [client.post(LOGIN, wrong) for _ in range(django_settings.AXES_FAILURE_LIMIT)]

    assert last.status_code == 429
    assert re.findall(r'<p id="refused"[^>]*>(.*?)</p>', last.content.decode()) == [
        "Too many wrong logins. Wait 15 minutes, or ask an admin to remove the failed logins."
    ]
    assert name not in last.content.decode()


@pytest.mark.parametrize("page", ["/admin/login/", "/admin/"])
def test_pages_allow_no_inline_script_and_no_frame(admin_client: Client, page: str) -> None:
    policy = admin_client.get(page, follow=True).headers["Content-Security-Policy"]

    assert "script-src 'self' 'unsafe-eval';" in policy + ";"
    assert "frame-ancestors 'none'" in policy


def test_a_page_loads_nothing_by_a_base_of_somebody_elses(admin_client: Client) -> None:
    assert "base-uri 'none'" in admin_client.get("/admin/").headers["Content-Security-Policy"]


@pytest.mark.parametrize("page", ["/admin/", "/admin/login/", "/healthz", "/readyz", "/api/v1/status"])
def test_no_browser_and_no_proxy_keeps_an_answer(admin_client: Client, page: str) -> None:
    assert "no-store" in admin_client.get(page, follow=True).headers["Cache-Control"]


def test_a_logout_clears_the_browser(admin_client: Client) -> None:
    assert admin_client.post("/admin/logout/").headers["Clear-Site-Data"] == '"cache", "storage"'


def test_a_session_ends_however_much_somebody_works(
    client: Client, person: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SESSION_MAX_SECONDS = 3600
    now = time.time()
    assert log_in(client)
    assert client.get("/admin/").status_code == 200
    for minutes, is_in in ((30, True), (59, True), (61, False)):
        monkeypatch.setattr(time, "time", lambda at=now + 60 * minutes: at)
        assert (client.get("/admin/").status_code == 200) is is_in


@pytest.mark.parametrize(
    ("password", "is_refused"),
    [
        ("StatusPushServer1", True),
        ("gorush-admin-push", True),
        ("correct horse battery staple", False),
        ("the waku server of my aunt", False),
    ],
)
def test_a_password_is_more_than_the_name_of_the_server(password: str, is_refused: bool) -> None:
    validator = NoWordOfOurs()
    if is_refused:
        with pytest.raises(ValidationError):
            validator.validate(password)
    else:
        validator.validate(password)


def test_logins_are_logged_and_never_the_name_of_a_failed_one(client: Client, person: User) -> None:
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


def test_every_opened_row_is_noted_with_who_opened_it(admin_client: Client) -> None:
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


def test_roles_look_act_and_manage() -> None:
    may = {
        role.name: {f"{p.content_type.app_label}.{p.codename}" for p in role.permissions.select_related("content_type")}
        for role in Group.objects.all()
    }

    assert may["support"] < may["operator"] < may["admin"]
    assert {"registrations.view_registration", "notifications.view_attempt"} <= may["support"]
    assert not [name for name in may["support"] if ".view_" not in name]
    assert {"notifications.operate_channel", "notifications.change_gatewayerrorrule"} <= may["operator"] - may[
        "support"
    ]
    staff = [name for name in may["operator"] if name.startswith(("auth.", "pushserver.", "otp_totp."))]
    assert sorted(staff) == ["pushserver.operate_incident", "pushserver.view_incident"]
    assert {"auth.add_user", "otp_totp.delete_totpdevice", "pushserver.view_accessrecord"} <= may["admin"]
    assert "admin.view_logentry" in may["operator"] - may["support"]
    for name in ("registrations.delete_registration", "notifications.change_attempt", "waku_bridge.add_deadletter"):
        assert name not in may["admin"]


def test_every_permission_of_ours_belongs_to_a_role_or_to_a_table_nobody_edits() -> None:
    ours = Permission.objects.filter(content_type__app_label__in=("registrations", "notifications", "waku_bridge"))
    for permission in ours.exclude(group__name="admin"):
        assert permission.codename.split("_")[0] in {"add", "change", "delete"}
