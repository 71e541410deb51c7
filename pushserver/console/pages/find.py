"""The search box of every page: it leads from a reported key, hash, id or number to its user or notification.

As in `search`, a chat key arrives in the body of a POST, and only its hash is used after that. A secret of a bridge is
replaced by an id in the same way. Every look-up has an index, and ends after a few rows.
"""

from collections.abc import Iterable, Iterator

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_safe

from notifications.models import Notification, NotificationRequest
from pushserver.console.notifications.admin import ID_BYTES, request_timeline_url, timeline_url, type_name
from pushserver.console.pages.labels import NOT_UNDERSTOOD, NOTHING_FOUND
from pushserver.console.pages.links import user_url
from pushserver.console.pages.menu import ENVELOPES, NOTIFICATIONS, USERS, may_find
from pushserver.console.pages.search import NotUnderstoodError, for_url
from pushserver.console.part import Found
from pushserver.console.parts import parts
from pushserver.console.registrations.admin import KEY_HASH_BYTES
from pushserver.console.toolkit.columns import SHORT_DIGITS, hex_of
from pushserver.console.toolkit.search import KEY_HASH_DIGITS, by_hash, hash_digits, is_id, is_number, spellings
from pushserver.console.waku.admin import envelope_url
from pushserver.demonstration import people
from registrations.models import Registration, TopicKey
from waku_bridge.codec.keys import key_hash as chat_key_hash
from waku_bridge.models import InboundEnvelope

MAX_HITS = 20


@sensitive_post_parameters("q")
def find(request: HttpRequest) -> HttpResponse:
    """Show the search box, or redirect its POST to a URL that holds no chat key."""
    _refuse_who_may_see_nothing(request)
    if request.method != "POST":
        # The people of the demonstration with the URLs of their pages. A real server has none.
        shown = [(person, user_url(hex_of(chat_key_hash(person.public_key)))) for person in people()]
        context = {**admin.site.each_context(request), "title": "Find"}
        context |= {"people": shown, "terms": [words for part in parts() for words in part.search_terms]}
        return TemplateResponse(request, "console/find.html", context)
    try:
        term = found_by(request.POST.get("q", "").strip())
    except NotUnderstoodError as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(reverse("find"))
    return HttpResponseRedirect(reverse("found", args=[term]))


@require_safe
def found(request: HttpRequest, term: str) -> HttpResponse:
    """Redirect to a single hit, or show a choice of several."""
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
    context |= {"terms": [words for part in parts() for words in part.search_terms]}
    return TemplateResponse(request, "console/find.html", context)


def _refuse_who_may_see_nothing(request: HttpRequest) -> None:
    if not may_find(request.user):
        raise PermissionDenied


def _may_stand_in_a_url(term: str) -> bool:
    """Return whether the term has no chat key. Somebody may have typed a URL that has one."""
    try:
        return found_by(term) == term
    except NotUnderstoodError:
        return False


def found_by(term: str) -> str:
    """Return the term in its form for URLs. The number of a notification is a term here, but not in lists.

    Raises NotUnderstoodError.
    """
    return term if is_number(term) else for_url(term)


def hits_for(term: str) -> list[Found]:
    """Return the hits for ``term``: a hash or its first digits, a number, or the id of an installation or a device."""
    digits = hash_digits(term)
    hits = list(_installations(term)) if is_id(term) else []
    hits += [found for part in parts() for found in part.find(term)]
    hits += _numbered(term) if is_number(term) else []
    if len(digits) == KEY_HASH_DIGITS:
        hits += _user(bytes.fromhex(digits))
    elif digits:
        hits += [*_users(digits), *_messages(digits), *_envelopes(digits)]
    return list(dict.fromkeys(hits))[:MAX_HITS]


def _installations(term: str) -> Iterator[Found]:
    rows = Registration.objects.filter(installation_id__in=spellings(term))
    for key_hash in set(rows.values_list("public_key_hash", flat=True)[:MAX_HITS]):
        yield _user_hit(key_hash)


def _numbered(term: str) -> Iterator[Found]:
    """Yield the notification with this number."""
    rows = Notification.objects.filter(pk=int(term)).values_list("pk", "type", "state", "installation_id")
    for pk, type_, state, installation_id in rows:
        yield _notification_hit(pk, type_, state, installation_id)


def _notification_hit(pk: int, type_: int, state: str, installation_id: str) -> Found:
    text = f"{pk}: {type_name(type_)}, {state}, to installation {installation_id}"
    return Found("notification", text, timeline_url(pk), NOTIFICATIONS)


def _user(key_hash: bytes) -> Iterator[Found]:
    """Yield the user with this key hash, who may have unregistered, or had notifications without a registration."""
    own = {"public_key_hash": key_hash}
    is_known = Registration.objects.filter(**own).exists() or Notification.objects.filter(**own).exists()
    if is_known or TopicKey.objects.filter(name=key_hash.hex()).exists():
        yield _user_hit(key_hash)


def _users(digits: str) -> Iterator[Found]:
    rows = Registration.objects.filter(by_hash(digits, (("public_key_hash", KEY_HASH_BYTES),)))
    for key_hash in dict.fromkeys(rows.values_list("public_key_hash", flat=True)[:MAX_HITS]):
        yield _user_hit(key_hash)


def _user_hit(key_hash: bytes) -> Found:
    return Found("user", hex_of(key_hash)[:SHORT_DIGITS], user_url(hex_of(key_hash)), USERS)


def _messages(digits: str) -> Iterator[Found]:
    """Yield the notifications and requests of a Status message or a metadata message.

    There are two queries, because one condition for both ids could use neither index.
    """
    for field in ("message_id", "request_key"):
        requests = NotificationRequest.objects.filter(by_hash(digits, ((field, ID_BYTES),)))
        yield from _of_requests(requests.values_list("pk", "request_key")[:MAX_HITS])


def _envelopes(digits: str) -> Iterator[Found]:
    rows = InboundEnvelope.objects.filter(by_hash(digits, (("hash", ID_BYTES),)))
    for envelope_hash, message_id in rows.values_list("hash", "message_id")[:MAX_HITS]:
        asked = NotificationRequest.objects.filter(request_key=message_id).values_list("pk", "request_key")
        found_requests = list(_of_requests(asked)) if message_id else []
        yield from found_requests or [
            Found("envelope", hex_of(envelope_hash)[:SHORT_DIGITS], envelope_url(envelope_hash), ENVELOPES)
        ]


def _of_requests(requests: Iterable[tuple[int, bytes]]) -> Iterator[Found]:
    """Yield the notifications of each request, or the request itself when it has none."""
    names = dict(requests)
    rows = Notification.objects.filter(request__in=names).order_by("request", "position")
    hits: dict[int, list[Found]] = {}
    for pk, request_id, type_, state, installation_id in rows.values_list(
        "pk", "request", "type", "state", "installation_id"
    )[:MAX_HITS]:
        hits.setdefault(request_id, []).append(_notification_hit(pk, type_, state, installation_id))
    for request_id, name in names.items():
        alone = Found("request", hex_of(name)[:SHORT_DIGITS], request_timeline_url(request_id), NOTIFICATIONS)
        yield from hits.get(request_id, [alone])
