"""Privacy of every output: page, API answer, metric and log line.

The tests have a whole server of their own, with its web server, that logs as JSON. They open the pages for one row of
each table, and nightly for every row.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from itertools import chain

import httpx
import pytest
from django.conf import settings
from django.urls import get_resolver
from pytest_django import DjangoDbBlocker

from embedded.servers.ports import free_port
from embedded.stack import plan
from embedded.supervisor.processes import StopOrder
from pushserver.models import ApiToken
from tests.budget import first_everyday
from tests.console.routes import Page, console_pages, patterns
from tests.databases import connected_to
from tests.flows.traces import Traces, found
from tests.rig.network import Network, network_of
from tests.rig.server import OF_FLOWS, Fleet, NewFleet, served, wait_for_http
from waku_bridge.codec.keys import chat_key
from waku_bridge.identity import canary_identity, server_identity

PASSWORD, METRICS_TOKEN = secrets.token_urlsafe(20), secrets.token_urlsafe(20)
# Values in the database that no output may contain, not even encrypted or as a digest.
KEPT = """
    SELECT address_encrypted FROM registrations_route UNION ALL SELECT address_digest FROM registrations_route
    UNION ALL SELECT delivered_digest FROM registrations_route WHERE delivered_digest IS NOT NULL
    UNION ALL SELECT access_token_encrypted FROM registrations_registration
    UNION ALL SELECT access_token_digest FROM registrations_registration
    UNION ALL SELECT content_digest FROM registrations_registration
    UNION ALL SELECT signature FROM registrations_grant UNION ALL SELECT access_token_digest FROM registrations_grant
    UNION ALL SELECT key_encrypted FROM registrations_topickey
    UNION ALL SELECT dedup_key FROM notifications_notification UNION ALL SELECT message FROM notifications_notification
    UNION ALL SELECT payload FROM waku_bridge_inboundenvelope UNION ALL SELECT payload FROM waku_bridge_outboundreply
    UNION ALL SELECT decode(raw::json->>'payload', 'base64') FROM waku_bridge_deadletter
    UNION ALL SELECT digest FROM pushserver_apitoken
"""


@pytest.fixture(scope="module")
def own_fleet(new_fleet: NewFleet) -> Iterator[Fleet]:
    own = {"LOG_FORMAT": "json", "METRICS_TOKEN": METRICS_TOKEN, "API_CALLS_PER_MINUTE": "100000"}
    with served(new_fleet("privacy", **OF_FLOWS, **own)) as fleet:
        yield fleet


@pytest.fixture
def own_network(own_fleet: Fleet) -> Iterator[Network]:
    with closing(network_of(own_fleet)) as network:
        yield network


@pytest.fixture
def web(own_fleet: Fleet) -> str:
    """Start the web server, and return its URL."""
    port = free_port()
    own_fleet.start(plan.web("127.0.0.1", port))
    wait_for_http(f"http://127.0.0.1:{port}/healthz")
    return f"http://127.0.0.1:{port}"


def manage(fleet: Fleet, command: str, *arguments: str, **environment: str) -> str:
    """Run a command, check that it succeeded, and return its output."""
    spec = plan.manage(command, command, *arguments, stop_order=StopOrder.FRONT)
    fleet.run(replace(spec, environment={**spec.environment, **environment}))
    return fleet.log(command)


@pytest.mark.parametrize(("every_row", "pages"), first_everyday((False, 15), (True, 60)))
def test_no_page_answer_metric_or_log_shows_a_token_key_or_message(
    own_fleet: Fleet, own_network: Network, web: str, django_db_blocker: DjangoDbBlocker, every_row: bool, pages: int
) -> None:
    traces = Traces(own_network)
    manage(own_fleet, "canary")
    manage(own_fleet, "createsuperuser", "--noinput", *NAME, DJANGO_SUPERUSER_PASSWORD=PASSWORD)
    (api_token,) = re.findall("psk_[^ ]{43}", manage(own_fleet, "api_token", "create", "test", *SCOPES).strip())

    def pages_now() -> list[Page]:
        with django_db_blocker.unblock(), connected_to(own_fleet.environment["DATABASE_URL"]):
            return console_pages(every_row=every_row)

    pages_read = read_pages(web, pages_now, traces)
    read = {**pages_read, **read_api(web, api_token, traces), **read_metrics(web)}
    read |= {f"log of {name}": log for name, log in own_fleet.logs().items() if name != "api_token"}

    hidden = traces.secrets() | kept(own_fleet) | digests(traces) | own_secrets() | {"API token": api_token.encode()}
    assert len([place for place in read if "/change/" in place]) > pages
    assert found({"installation": traces.phones[0].state.installation_id.encode()}, pages_read)
    assert found(hidden, read) == []


NAME = ("--username", "ann", "--email", "ann@example.org")
SCOPES = tuple(chain.from_iterable(("--scope", scope) for scope in ApiToken.Scope.values))


def read_pages(web: str, pages_now: Callable[[], list[Page]], traces: Traces) -> dict[str, str]:
    """Load every page, and search for each person by the chat key and by one with a slip in it.

    The server goes on meanwhile, so a finished row, such as a window of a store, may have no page any more.
    """
    pages = pages_now()
    with httpx.Client(base_url=web, trust_env=False, timeout=60) as browser:
        login = browser.get("/admin/login/").text
        (token,) = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', login))
        sent = {"username": "ann", "password": PASSWORD, "csrfmiddlewaretoken": token, "next": "/admin/"}
        assert browser.post("/admin/login/", data=sent).status_code == 302
        for key in [chat_key(phone.identity.pub33) for phone in traces.phones]:
            sent["csrfmiddlewaretoken"] = browser.cookies["csrftoken"]
            searches = [browser.post("/admin/find/", data=sent | {"q": text}) for text in (key, key[:-1])]
            assert [answer.status_code for answer in searches] == [302, 302]
            pages = [*pages, *(Page("search", answer.headers["Location"]) for answer in searches)]
        answers = {page.url: browser.get(page.url) for page in pages if page.name != "admin:logout"}
    assert [url for url, answer in answers.items() if answer.is_server_error] == []
    rows = [page.url for page in pages_now() if "/change/" in page.url and page.url in answers]
    assert [url for url in rows if answers[url].status_code != 200] == []
    return {url: f"{url} {answer.headers} {answer.text}" for url, answer in answers.items()}


def read_api(web: str, token: str, traces: Traces) -> dict[str, str]:
    """Load every list of the API for each person who left traces, as no list covers everybody, and every notification
    in them.
    """
    hashes = [phone.identity.key_hash.hex() for phone in traces.phones]
    routes = {name: route for name, route in patterns(get_resolver()) if route.startswith("api/v1/")}
    lists = ["/" + re.sub(r"[\^$]", "", route) for name, route in routes.items() if "(" not in route]
    with httpx.Client(base_url=web, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as program:
        urls = [*lists, *(f"{url}?key_hash={key_hash}" for url in lists for key_hash in hashes), "/api/schema"]
        answers = {url: program.get(url) for url in urls}
        assert [url for url, answer in answers.items() if answer.status_code in {401, 403}] == []
        found_ones = chain.from_iterable(answer.json().get("results", []) for url, answer in list(answers.items())[:-1])
        ids = {row["id"] for row in found_ones if "message_id" in row}
        stories = {f"/api/v1/notifications/{id_}/": program.get(f"/api/v1/notifications/{id_}/") for id_ in ids}
    assert len(stories) >= len(traces.phones)
    assert {answer.status_code for answer in stories.values()} == {200}
    return {url: answer.text for url, answer in (answers | stories).items()}


def read_metrics(web: str) -> dict[str, str]:
    answer = httpx.get(f"{web}/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"}, trust_env=False)
    assert answer.status_code == 200
    ready = httpx.get(f"{web}/readyz", trust_env=False)
    return {"metrics": answer.text, "readyz": ready.text}


def own_secrets() -> dict[str, bytes]:
    """Return secrets of the server and its canary."""
    return {
        "password": PASSWORD.encode(),
        "metrics": METRICS_TOKEN.encode(),
        "SECRET_KEY": settings.SECRET_KEY.encode(),
        "private key of the server": server_identity().private_key.secret,
        "private key of the canary": canary_identity().private_key.secret,
        "device token of the canary": settings.CANARY_DRY_RUN_TOKEN.encode(),
        **{f"field key {number}": key for number, key in enumerate(settings.FIELD_ENCRYPTION_KEYS)},
    }


def kept(fleet: Fleet) -> dict[str, bytes]:
    values = [bytes(value) for (value,) in fleet.rows(KEPT) if value and len(value) >= 16]
    return {f"kept value {number}": value for number, value in enumerate(dict.fromkeys(values))}


def digests(traces: Traces) -> dict[str, bytes]:
    """Return plain digests of the traces, which a list of tokens would reveal."""
    return {f"digest of {name}": sha256(secret).digest() for name, secret in traces.secrets().items()}
