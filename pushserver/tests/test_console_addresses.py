"""Who is locked out after wrong logins: the address they came from, not everybody behind the same proxy."""

from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import Client

PASSWORD = "correct horse battery staple"
PROXY = "127.0.0.1"
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _anna(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick: many guesses
    User.objects.create_superuser("anna", password=PASSWORD)


@pytest.fixture
def proxy(settings: Any) -> None:
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": 1}


def log_in(password: str = PASSWORD, **headers: str) -> int:
    form = {"username": "anna", "password": password, "next": "/admin/"}
    return Client().post("/admin/login/", form, headers=headers).status_code


def guess(**headers: str) -> int:
    """Guess passwords until the address is locked out, and return the last answer."""
    *_, last = [log_in("wrong", **headers) for _ in range(django_settings.AXES_FAILURE_LIMIT)]
    return last


@pytest.mark.usefixtures("proxy")
def test_behind_a_proxy_nobody_elses_guesses_lock_anybody_out() -> None:
    assert guess(x_forwarded_for="203.0.113.66") == 429

    assert log_in(x_forwarded_for="203.0.113.66") == 429
    assert log_in(x_forwarded_for="198.51.100.1") == 302


@pytest.mark.usefixtures("proxy")
def test_who_makes_up_where_it_comes_from_is_known_by_what_the_proxy_added() -> None:
    limit = django_settings.AXES_FAILURE_LIMIT
    codes = [log_in("wrong", x_forwarded_for=f"198.51.100.{number}, 203.0.113.66") for number in range(limit)]

    assert codes[-1] == 429
    assert set(AccessAttempt.objects.values_list("ip_address", flat=True)) == {"203.0.113.66"}


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("203.0.113.66", "203.0.113.66"),
        ("203.0.113.66:51234", "203.0.113.66"),
        ("2001:db8::66", "2001:db8::66"),
        ("[2001:db8::66]:51234", "2001:db8::66"),
        ("[2001:db8::66]", "2001:db8::66"),
        ("fe80::66%eth0", "fe80::66"),
        ("unknown", PROXY),
        ("_hidden", PROXY),
        ("203.0.113.266", PROXY),
        ("a, ", PROXY),
        ("[", PROXY),
        ("'; DROP TABLE axes_accessattempt; --", PROXY),
    ],
)
def test_what_a_proxy_says_is_kept_as_an_address_and_else_the_proxys_own(said: str, address: str) -> None:
    assert guess(x_forwarded_for=said) == 429
    assert AccessAttempt.objects.get().ip_address == address


def test_without_a_proxy_nobody_can_say_that_it_comes_from_elsewhere() -> None:
    assert guess(x_forwarded_for="203.0.113.66") == 429
    assert AccessAttempt.objects.get().ip_address == PROXY
