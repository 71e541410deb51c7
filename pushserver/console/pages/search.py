"""The search box of every list: it reads a pasted term, and redirects to a URL without a chat key.

A chat key identifies a person. It arrives in the body of a POST, is hashed here, and is neither stored nor logged. The
URL, and everything that keeps it, has the hash. In the same way a bridge replaces a secret by the id of its owner. A
term of no known form may be a mistyped chat key, so it is refused and repeated nowhere.
"""

import re

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.exceptions import NotRegistered
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from kit.display import counted
from notifications.models import Notification, NotificationRequest
from pushserver.console.notifications.admin import ID_BYTES
from pushserver.console.pages.labels import KEY_CUT_OFF, NOT_UNDERSTOOD
from pushserver.console.parts import parts
from pushserver.console.registrations.admin import KEY_HASH_BYTES
from pushserver.console.toolkit.facts import FactAdmin
from pushserver.console.toolkit.lists import NEWER, OLDER
from pushserver.console.toolkit.search import (
    KEY_HASH_DIGITS,
    SHORT_ID_DIGITS,
    by_hash,
    hash_digits,
    is_id,
    is_word,
)
from pushserver.console.waku.chat_keys import parse_chat_key
from registrations.models import Registration
from waku_bridge.codec.errors import BadPublicKey
from waku_bridge.codec.keys import key_hash
from waku_bridge.models import InboundEnvelope

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
        return key_hash(parse_chat_key(_key_in(term))).hex()
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
