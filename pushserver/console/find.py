"""The search box of every page: from whatever somebody reports to the user or the notification it is about.

As in `search`, a chat key arrives in the body of a POST, and is its hash from there on. Every look-up has an index, and
ends after a few rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_safe

from notifications.admin import ID_BYTES, request_url, type_name
from notifications.models import Notification, NotificationRequest
from pushserver.console.links import timeline_url, user_url
from pushserver.console.search import NOT_UNDERSTOOD, NotUnderstoodError, for_url
from pushserver.console.theme import ENVELOPES, NOTIFICATIONS, USERS, may_find
from registrations.admin import KEY_HASH_BYTES
from registrations.console.columns import SHORT_DIGITS, hex_of
from registrations.console.search import KEY_HASH_DIGITS, by_hash, hash_digits, is_id, spellings
from registrations.models import Registration, TopicKey
from waku_bridge.admin import envelope_url
from waku_bridge.models import InboundEnvelope

MAX_HITS = 20
NOTHING_FOUND = (
    "Nothing was found. Users are known while they are registered or were notified lately; envelopes are kept for some "
    "days, notifications for some weeks."
)


@dataclass(frozen=True, slots=True)
class Hit:
    kind: str
    text: str
    url: str
    permission: str


@sensitive_post_parameters("q")
def find(request: HttpRequest) -> HttpResponse:
    """The box itself, and where it is sent to."""
    _refuse_who_may_see_nothing(request)
    if request.method != "POST":
        context = {**admin.site.each_context(request), "title": "Find", "nothing": True}
        return TemplateResponse(request, "console/find.html", context)
    try:
        term = for_url(request.POST.get("q", "").strip())
    except NotUnderstoodError:
        messages.error(request, NOT_UNDERSTOOD)
        return HttpResponseRedirect(reverse("find"))
    return HttpResponseRedirect(reverse("found", args=[term]))


@require_safe
def found(request: HttpRequest, term: str) -> HttpResponse:
    """To the one thing that is meant, or the choice between several."""
    _refuse_who_may_see_nothing(request)
    if not _may_stand_in_a_url(term):
        messages.error(request, NOT_UNDERSTOOD)
        return HttpResponseRedirect(reverse("find"))
    hits = [hit for hit in hits_for(term) if request.user.has_perm(hit.permission)]
    if not hits:
        messages.warning(request, NOTHING_FOUND)
        return HttpResponseRedirect(reverse("find"))
    if len(hits) == 1:
        return HttpResponseRedirect(hits[0].url)
    context = {**admin.site.each_context(request), "title": "Found", "hits": hits, "is_cut": len(hits) >= MAX_HITS}
    return TemplateResponse(request, "console/find.html", context)


def _refuse_who_may_see_nothing(request: HttpRequest) -> None:
    if not may_find(request.user):
        raise PermissionDenied


def _may_stand_in_a_url(term: str) -> bool:
    """Somebody may have made the URL by hand, with a chat key in it."""
    try:
        return for_url(term) == term
    except NotUnderstoodError:
        return False


def hits_for(term: str) -> list[Hit]:
    """``term`` is a hash, the first digits of one, or an installation id."""
    digits = hash_digits(term)
    hits = list(_installations(term)) if is_id(term) else []
    if len(digits) == KEY_HASH_DIGITS:
        hits += _user(bytes.fromhex(digits))
    elif digits:
        hits += [*_users(digits), *_messages(digits), *_envelopes(digits)]
    return list(dict.fromkeys(hits))[:MAX_HITS]


def _installations(term: str) -> Iterator[Hit]:
    rows = Registration.objects.filter(installation_id__in=spellings(term))
    for key_hash in set(rows.values_list("public_key_hash", flat=True)[:MAX_HITS]):
        yield _user_hit(key_hash)


def _user(key_hash: bytes) -> Iterator[Hit]:
    """Also somebody who is registered no longer, or never was and was notified all the same."""
    own = {"public_key_hash": key_hash}
    is_known = Registration.objects.filter(**own).exists() or Notification.objects.filter(**own).exists()
    if is_known or TopicKey.objects.filter(name=key_hash.hex()).exists():
        yield _user_hit(key_hash)


def _users(digits: str) -> Iterator[Hit]:
    rows = Registration.objects.filter(by_hash(digits, (("public_key_hash", KEY_HASH_BYTES),)))
    for key_hash in dict.fromkeys(rows.values_list("public_key_hash", flat=True)[:MAX_HITS]):
        yield _user_hit(key_hash)


def _user_hit(key_hash: bytes) -> Hit:
    return Hit("user", hex_of(key_hash)[:SHORT_DIGITS], user_url(hex_of(key_hash)), USERS)


def _messages(digits: str) -> Iterator[Hit]:
    """By the id of the Status message, or of the metadata message. One condition for both would hide their indexes."""
    for field in ("message_id", "amm_message_id"):
        requests = NotificationRequest.objects.filter(by_hash(digits, ((field, ID_BYTES),)))
        yield from _of_requests(requests.values_list("pk", "amm_message_id")[:MAX_HITS])


def _envelopes(digits: str) -> Iterator[Hit]:
    rows = InboundEnvelope.objects.filter(by_hash(digits, (("hash", ID_BYTES),)))
    for envelope_hash, message_id in rows.values_list("hash", "message_id")[:MAX_HITS]:
        asked = NotificationRequest.objects.filter(amm_message_id=message_id).values_list("pk", "amm_message_id")
        told = list(_of_requests(asked)) if message_id else []
        yield from told or [
            Hit("envelope", hex_of(envelope_hash)[:SHORT_DIGITS], envelope_url(envelope_hash), ENVELOPES)
        ]


def _of_requests(requests: Iterable[tuple[int, bytes]]) -> Iterator[Hit]:
    """The notifications of each; the request itself when it has none."""
    names = dict(requests)
    rows = Notification.objects.filter(request__in=names).order_by("request", "position")
    hits: dict[int, list[Hit]] = {}
    for pk, request_id, type_, state, installation_id in rows.values_list(
        "pk", "request", "type", "state", "installation_id"
    )[:MAX_HITS]:
        text = f"{pk}: {type_name(type_)}, {state}, to installation {installation_id}"
        hits.setdefault(request_id, []).append(Hit("notification", text, timeline_url(pk), NOTIFICATIONS))
    for request_id, name in names.items():
        alone = Hit("request", hex_of(name)[:SHORT_DIGITS], request_url(request_id), NOTIFICATIONS)
        yield from hits.get(request_id, [alone])
