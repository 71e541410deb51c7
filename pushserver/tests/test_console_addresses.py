"""Lockout after wrong logins: it covers the address of the logins, and nobody else behind the same proxy."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from io import BytesIO
from threading import Barrier, Event
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.test import Client

from pushserver.console.models import FailedLogin
from pushserver.console.pages import logins
from pushserver.console.pages.logins import MAX_REMEMBERED, OF_BOTH, OF_NAME, OF_NETWORK, LoginQueue

PASSWORD = "correct horse battery staple"
PROXY = "127.0.0.1"
FORM_TYPE = "application/x-www-form-urlencoded"
FORM = {"username": "anna", "password": PASSWORD}
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
    *_, last = [log_in("wrong", **headers) for _ in range(OF_BOTH)]
    return last


@pytest.mark.usefixtures("proxy")
def test_behind_a_proxy_one_address_alone_locks_a_name_nowhere_else() -> None:
    assert guess(x_forwarded_for="203.0.113.66") == 429
    assert {log_in("wrong", x_forwarded_for="203.0.113.66") for _ in range(OF_NAME)} == {429}
    assert log_in(x_forwarded_for="203.0.113.66") == 429
    assert log_in(x_forwarded_for="198.51.100.1") == 302


@pytest.mark.usefixtures("proxy")
def test_a_forged_forwarded_address_is_ignored_for_the_one_that_the_proxy_added() -> None:
    limit = OF_BOTH
    codes = [log_in("wrong", x_forwarded_for=f"198.51.100.{number}, 203.0.113.66") for number in range(limit)]

    assert codes[-1] == 429
    assert set(FailedLogin.objects.values_list("network", flat=True)) == {"203.0.113.66"}


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize(
    ("address", "forwarded"),
    [
        ("203.0.113.66", ["203.0.113.66", "203.0.113.66:51234"]),
        ("2001:db8::", ["2001:db8::66", "[2001:db8::66]:51234", "[2001:db8::66]"]),
        ("fe80::", ["fe80::66%eth0"]),
        (PROXY, ["unknown", "_hidden", "203.0.113.266", "a, ", "[", "'; DROP TABLE pushserver_failedlogin; --"]),
    ],
)
def test_an_unreadable_forwarded_address_counts_as_that_of_the_proxy(address: str, forwarded: list[str]) -> None:
    for shown in forwarded:
        FailedLogin.objects.all().delete()
        assert guess(x_forwarded_for=shown) == 429, shown
        assert FailedLogin.objects.get().network == address


def test_guessing_passwords_locks_out_until_an_admin_ends_it() -> None:
    """Without a proxy a forwarded address is ignored."""
    assert guess(x_forwarded_for="203.0.113.66") == log_in() == 429
    assert FailedLogin.objects.get().network == PROXY
    FailedLogin.objects.all().delete()
    assert log_in() == 302


@pytest.mark.usefixtures("proxy")
def test_another_address_of_the_same_network_does_not_help_to_guess() -> None:
    limit = OF_BOTH
    codes = [log_in("wrong", x_forwarded_for=f"2001:db8:1:2::{number:x}:1") for number in range(limit)]

    assert codes[-1] == 429
    assert log_in(x_forwarded_for="2001:db8:1:2:ffff::1") == 429
    assert log_in(x_forwarded_for="2001:db8:1:3::1") == 302
    assert guess(x_forwarded_for="::ffff:203.0.113.9") == log_in(x_forwarded_for="203.0.113.9") == 429


def browser(**headers: str) -> Client:
    """Return the browser of somebody who has logged in with it, and out again."""
    client = Client(headers=headers)
    assert client.post("/admin/login/", FORM).status_code == 302
    client.post("/admin/logout/")
    return client


@pytest.mark.usefixtures("proxy")
def test_guesses_at_many_names_lock_their_address_and_nobody_elses() -> None:
    address = {"x_forwarded_for": "203.0.113.66"}
    office = browser(**address)
    wrong = [{"username": f"name {number}", "password": "wrong"} for number in range(28)]
    codes = [Client(headers=address).post("/admin/login/", form).status_code for form in wrong]
    assert codes == [200] * (OF_NETWORK - 1) + [429] * (28 - OF_NETWORK + 1)
    assert log_in(**address) == 429
    assert log_in(x_forwarded_for="198.51.100.1") == 302
    assert office.post("/admin/login/", FORM).status_code == 302  # staff behind the same address


@pytest.mark.usefixtures("proxy")
def test_guesses_at_a_name_from_many_addresses_lock_it_but_not_where_it_logged_in_before() -> None:
    own = browser(x_forwarded_for="198.51.100.1")
    own.cookies["known"] = own.cookies["known"].value.replace("a", "b").replace("0", "1")
    forged, own = own, browser(x_forwarded_for="198.51.100.1")
    networks = [f"203.0.113.{number}" for number in range(OF_NAME)]
    assert [log_in("wrong", x_forwarded_for=each) for each in networks] == [200] * (OF_NAME - 1) + [429]
    assert log_in(x_forwarded_for="192.0.2.1") == forged.post("/admin/login/", FORM).status_code == 429
    assert own.post("/admin/login/", FORM).status_code == 302


@pytest.fixture
def queue(monkeypatch: Any) -> LoginQueue:
    queue = LoginQueue()
    monkeypatch.setattr(logins, "LOGINS", queue)
    return queue


@contextmanager
def logging_in(queue: LoginQueue, network: str) -> Iterator[bool]:
    """Log in from a network, and yield whether its password is checked."""
    with queue.slot(network) as has_slot, queue.wait() if has_slot else nullcontext(False) as is_ours:
        yield is_ours


@pytest.mark.usefixtures("proxy", "queue")
@pytest.mark.parametrize("page", ["/admin/login/", "/admin/find/", "/", "/healthz", "/readyz", "/api/schema"])
def test_forms_that_never_end_hold_few_threads_and_none_of_who_is_logged_in(page: str) -> None:
    """Django reads the form to check it against forgeries, before it calls a view."""
    reading = Barrier(3)
    is_over = Event()

    class Endless(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            reading.wait(60)
            assert is_over.wait(60)
            return super().read(size)

    def send(address: str) -> int:
        client = Client(enforce_csrf_checks=True)
        client.cookies["csrftoken"] = "a" * 32
        form = {"wsgi.input": Endless(bytes(50)), "CONTENT_LENGTH": "50", "CONTENT_TYPE": FORM_TYPE}
        return client.post(page, headers={"x_forwarded_for": address}, **form).status_code

    staff = Client()
    staff.force_login(User.objects.get())
    with ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(send, f"203.0.113.{number}") for number in (1, 2)]
        reading.wait(60)
        assert [log_in(x_forwarded_for=address) for address in ("203.0.113.1", "198.51.100.7")] == [429, 429]
        assert Client().get("/healthz").status_code == 200
        assert staff.post("/admin/logout/").status_code == 200
        is_over.set()
        assert [each.result(timeout=60) for each in slow] == [403, 403]
    assert log_in() == 302


@pytest.mark.usefixtures("proxy")
def test_while_a_password_is_checked_its_network_holds_no_other_thread(queue: LoginQueue) -> None:
    """Many logins at once from one network hold one thread of the web server."""
    with logging_in(queue, "203.0.113.66") as is_ours:
        assert is_ours
        answer = Client().post("/admin/login/", FORM, headers={"x_forwarded_for": "203.0.113.66"})
        assert (answer.status_code, "Somebody else is logging in" in answer.content.decode()) == (429, True)
        assert Client().get("/admin/login/").status_code == 200
    assert log_in("wrong") == 200
    assert log_in() == 302


@pytest.mark.usefixtures("proxy")
def test_a_known_address_logs_in_while_many_others_guess(queue: LoginQueue) -> None:
    assert log_in(x_forwarded_for="203.0.113.66") == 302
    with logging_in(queue, "one"), ExitStack() as stack:
        stack.enter_context(patch.object(logins, "TIMEOUT_SECONDS", 0.01))
        assert not stack.enter_context(logging_in(queue, "two"))  # it has a slot, and waits in vain
        assert [log_in(x_forwarded_for=f"198.51.100.{number}") for number in range(3)] == [429] * 3
        assert stack.enter_context(queue.slot("203.0.113.66"))
        assert not stack.enter_context(queue.slot("203.0.113.66"))


def test_a_few_networks_wait_for_their_turn_and_no_more(queue: LoginQueue) -> None:
    checked = []

    def check(network: str) -> None:
        with logging_in(queue, network) as is_ours:
            checked.append((network, is_ours))

    with ThreadPoolExecutor(8) as pool:
        with logging_in(queue, "one"):
            waiting = pool.submit(check, "two")
            while len(queue._here) < 2:
                time.sleep(0.01)
            for network in ("one", "two", "four"):
                pool.submit(check, network).result(timeout=60)
            assert checked == [("one", False), ("two", False), ("four", False)]
        waiting.result(timeout=60)
    assert checked[3:] == [("two", True)]
    check("one")
    assert checked[-1] == ("one", True)


def test_the_number_of_remembered_networks_is_limited(queue: LoginQueue) -> None:
    for number in range(MAX_REMEMBERED + 1):
        queue.remember(str(number))
        queue.remember("ours")
    assert len(queue._known) == MAX_REMEMBERED
    assert ("ours" in queue._known, "0" in queue._known) == (True, False)
