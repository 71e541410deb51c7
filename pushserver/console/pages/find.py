"""The search boxes: one on every page, for everything, and one on each list.

The box of every page leads from a reported key, hash, id or number to its user or notification, and from words to
pages, runbooks, settings and the documentation. A chat key identifies a person. It arrives in the body of a POST, is
hashed here, and is neither stored nor logged. The URL, and everything that keeps it, has the hash. In the same way a
bridge replaces a secret by the id of its owner. A term of no known form may be a mistyped chat key, so it stands in no
URL, and is repeated nowhere. Every look-up has an index, and ends after a few rows.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from django.apps import apps
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.exceptions import NotRegistered
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe
from unfold.sites import UnfoldAdminSite

from kit.display import counted
from notifications.models import Notification, NotificationRequest
from pushserver.console.notifications.admin import ID_BYTES, request_timeline_url, timeline_url, type_name
from pushserver.console.pages.documentation import found_passages
from pushserver.console.pages.labels import KEY_CUT_OFF, NOT_UNDERSTOOD, NOTHING_FOUND
from pushserver.console.pages.links import user_url
from pushserver.console.pages.menu import ENVELOPES, NOTIFICATIONS, USERS, may_find
from pushserver.console.part import Found
from pushserver.console.parts import parts
from pushserver.console.registrations.admin import KEY_HASH_BYTES
from pushserver.console.toolkit.columns import SHORT_DIGITS, hex_of
from pushserver.console.toolkit.facts import FactAdmin
from pushserver.console.toolkit.lists import NEWER, OLDER
from pushserver.console.toolkit.search import (
    KEY_HASH_DIGITS,
    SHORT_ID_DIGITS,
    by_hash,
    hash_digits,
    is_id,
    is_number,
    is_word,
    spellings,
)
from pushserver.console.waku.admin import envelope_url
from registrations.models import Registration, TopicKey
from waku_bridge.codec.errors import BadPublicKey
from waku_bridge.codec.keys import key_hash as chat_key_hash
from waku_bridge.codec.keys import parse_chat_key
from waku_bridge.models import InboundEnvelope

MAX_HITS = 20
# Words of a search for pages and documents. Shorter ones are everywhere.
_TEXT = re.compile(r"(?!zQ3|0x)[\w.'/-]{3,40}( +[\w.'/-]{2,40}){0,9}")

# The box of every page ------------------------------------------------------------------------------------------------


@sensitive_post_parameters("q")
def find(request: HttpRequest) -> HttpResponse:
    """Show the search box, or redirect its POST to a URL that holds no chat key."""
    _refuse_who_may_see_nothing(request)
    if request.method != "POST":
        # The people of `manage.py demo` with the URLs of their pages. A real server has none.
        people = cast(Any, apps.get_app_config("embedded")).people() if settings.DEMONSTRATION else ()
        shown = [(person, user_url(hex_of(chat_key_hash(person.public_key)))) for person in people]
        return _page(request, "Find", people=shown)
    try:
        term = found_by(request.POST.get("q", "").strip())
    except NotUnderstoodError as error:
        if texts := found_texts(request, request.POST.get("q", "").strip()):
            return _choice(request, texts)
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
    return _choice(request, hits)


def _choice(request: HttpRequest, hits: Sequence[Found]) -> HttpResponse:
    """Redirect to a single hit, or show a choice of several. It does not repeat the term."""
    if len(hits) == 1:
        return HttpResponseRedirect(hits[0].url)
    return _page(request, "Found", hits=hits, is_cut=len(hits) >= MAX_HITS)


def _page(request: HttpRequest, title: str, **own: object) -> TemplateResponse:
    terms = [words for part in parts() for words in part.search_terms]
    context = {**admin.site.each_context(request), "title": title, "terms": terms, **own}
    return TemplateResponse(request, "console/find.html", context)


def found_texts(request: HttpRequest, term: str) -> list[Found]:
    """Return the pages of the menu and the passages of the documentation with all these words."""
    if not _TEXT.fullmatch(term):
        return []
    words, site = term.lower().split(), cast(UnfoldAdminSite, admin.site)
    items = [item for section in site.get_sidebar_list(request) for item in section["items"]]
    pages = [
        Found("page", item["title"], item["link"], "")
        for item in items
        if item["has_permission"] and all(word in item["title"].lower() for word in words)
    ]
    texts = [Found(passage.kind, passage.title, passage.url, "") for passage in found_passages(words)]
    return [*pages, *texts][:MAX_HITS]


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


# The box of a list, and the forms of a term ---------------------------------------------------------------------------

# https://status.app/u/CwSACgYKBEpvaG4D#zQ3sh…, https://join.status.im/u/0x04…
_PROFILE_LINK = re.compile(
    r"(https?://)?(www\.)?(status\.app|join\.status\.im)/u/?([^\s#]*#)?(?P<key>(zQ3|0x|0[234])\w+)", re.IGNORECASE
)

# Length of a chat key by its first characters: both hexadecimal forms, and the short form of Status.
_LENGTHS = {"04": 130, "02": 66, "03": 66, "zQ3sh": 49}
# Digits that a badly copied key lacks at most. A term that lacks more is no key.
MAX_MISSING = 12
_HEX = re.compile("[0-9a-fA-F]+")
# The hashes that can be searched for, with their sizes in bytes.
_HASHES: tuple[tuple[type[Model], str, int], ...] = (
    (Registration, "public_key_hash", KEY_HASH_BYTES),
    (Notification, "public_key_hash", KEY_HASH_BYTES),
    (NotificationRequest, "message_id", ID_BYTES),
    (NotificationRequest, "request_key", ID_BYTES),
    (InboundEnvelope, "hash", ID_BYTES),
)


class NotUnderstoodError(Exception):
    """A term has no known form. The error does not repeat the term, because it may be a mistyped chat key."""

    def __init__(self, words: str = NOT_UNDERSTOOD) -> None:
        super().__init__(words)


@sensitive_post_parameters("q")
@require_POST
def search_facts(request: HttpRequest, app_label: str, model_name: str) -> HttpResponse:
    """Redirect a search to its list, with hashes in place of chat keys."""
    facts = _admin_of(app_label, model_name)
    if not facts.has_view_permission(request):
        raise PermissionDenied
    query = request.GET.copy()
    for outdated in ("q", OLDER, NEWER, "e"):  # the term, the page, and the error flag of the list
        query.pop(outdated, None)
    try:
        terms = [_searched(term, facts) for term in request.POST.get("q", "").split()]
    except NotUnderstoodError as error:
        messages.error(request, str(error))
    else:
        query.update({"q": " ".join(terms)} if terms else {})
    changelist = reverse(f"admin:{app_label}_{model_name}_changelist")
    return HttpResponseRedirect(f"{changelist}?{query.urlencode()}")


def _searched(term: str, facts: FactAdmin) -> str:
    return term if facts.takes_words and is_word(term) and not term.startswith("zQ3") else for_url(term)


def for_url(term: str) -> str:
    """Return the hash of a chat key, the id that a bridge has in place of a secret, or else the term itself.

    Raises NotUnderstoodError for anything else.
    """
    try:
        return chat_key_hash(parse_chat_key(_key_in(term))).hex()
    except BadPublicKey:
        pass
    missing = missing_of_a_chat_key(term)
    if missing and not _is_known(hash_digits(term)):
        count = counted(missing, "digit")
        raise NotUnderstoodError(KEY_CUT_OFF.format(missing=count))
    if is_id(term) or (hash_digits(term) and not _looks_like_part_of_a_chat_key(term)):
        return term
    for part in parts():
        if found := part.searchable(term):
            return found
    raise NotUnderstoodError


def missing_of_a_chat_key(term: str) -> int:
    """Return the number of digits that a term lacks to be a chat key, or 0 if it does not look like one."""
    digits = term.removeprefix("0x")
    length = next((length for begin, length in _LENGTHS.items() if digits.startswith(begin)), 0)
    is_hex = _HEX.fullmatch(digits) is not None
    missing = length - len(digits)
    return missing if 0 < missing <= MAX_MISSING and (is_hex or digits.startswith("zQ3sh")) else 0


def _is_known(digits: str) -> bool:
    """Return whether a stored hash begins with these digits. A hash may begin like a chat key."""
    # One query per column, because each column has its own index.
    return bool(digits) and any(
        model._default_manager.filter(by_hash(digits, ((column, size_bytes),))).exists()  # noqa: SLF001 - documented
        for model, column, size_bytes in _HASHES
        if len(digits) <= 2 * size_bytes  # a longer term would make no condition
    )


def _key_in(term: str) -> str:
    """Return the chat key of a link to a profile, or the term itself.

    Newer links have the key after `#`, and a description of the user before it. Older links end with the key.
    """
    link = _PROFILE_LINK.fullmatch(term)
    return link["key"] if link else term


def _looks_like_part_of_a_chat_key(term: str) -> bool:
    return term.startswith("0x04") and len(term) - 2 not in {SHORT_ID_DIGITS, KEY_HASH_DIGITS}


def _admin_of(app_label: str, model_name: str) -> FactAdmin:
    try:
        found = admin.site.get_model_admin(apps.get_model(app_label, model_name))
    except (LookupError, NotRegistered):
        raise Http404 from None
    if not isinstance(found, FactAdmin):
        raise Http404
    return found
