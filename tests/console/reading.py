"""What a page of the console says, as text, and the people who read it."""

import re
from html import unescape
from typing import Any

from coincurve import PrivateKey
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from notifications.gateways.gorush.models import current_rules
from pushserver.console.health.history import RECENT as TRENDS
from pushserver.console.health.stored import COUNTED
from pushserver.roles import seed_roles
from tests.rig.rows import make_staff
from waku_bridge.codec.keys import key_hash

# The user whom most tests are about.
PUBLIC_KEY = PrivateKey(b"\x05" * 32).public_key.format()
HEROINE = key_hash(PUBLIC_KEY)
USER_PAGE = f"/admin/users/{HEROINE.hex()}/"
WHY = "as agreed with ann"


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def words_of(client: Client, path: str) -> str:
    return words(client.get(path).content.decode())


def staff(role: str) -> Client:
    """Log in a new account of this role, or without a role."""
    seed_roles()
    name = f"{role or 'nobody'}{User.objects.count()}"
    return logged_in(make_staff(role, name) if role else User.objects.create_user(name, is_staff=True))


def allowed_to(*codenames: str) -> Client:
    """Log in a new account with these permissions alone."""
    user = User.objects.create_user("some", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return logged_in(user)


def logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def find(client: Client, term: str) -> Any:
    return client.post(reverse("find"), {"q": term}, follow=True)


def end_of(response: Any) -> str:
    return str(response.redirect_chain[-1][0])


def queries_of(client: Client, url: str) -> list[str]:
    """Return the queries of the page itself. A first request loads what each process loads once.

    What a process keeps for seconds is counted with each page: else its age decides how many queries there are.
    """
    client.get(url)
    current_rules().refresh()
    for kept in (COUNTED, *TRENDS.values()):
        kept.forget()
    with CaptureQueriesContext(connection) as queries:
        client.get(url)
    return [query["sql"] for query in queries.captured_queries]
