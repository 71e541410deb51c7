"""Queue of the canary's stanzas, in a table: the canary writes them, and the connected component sends them.

The component sends each queued stanza to itself through the XMPP server, and records the answer.
"""

from datetime import timedelta

from django.db.models.functions import Now

from kit.db.statements import fetch, write
from xmpp_bridge.messages import IqAnswer
from xmpp_bridge.models import CanaryStanza

# A queued stanza that was not sent within this time is not sent any more.
KEPT = timedelta(minutes=2)


_TAKE = """
    UPDATE xmpp_bridge_canarystanza SET sent_at = clock_timestamp()
    WHERE sent_at IS NULL AND queued_at > clock_timestamp() - %(kept)s RETURNING id, text
"""
_ANSWERED = """
    UPDATE xmpp_bridge_canarystanza SET answered_at = clock_timestamp(), error = %(error)s, is_own_error = %(is_own)s
    WHERE id = %(id)s AND answered_at IS NULL
"""
NO_CONDITION = "undefined-condition"


def queue(stanza_id: str, text: str) -> None:
    """Queue a stanza for the component to send."""
    CanaryStanza.objects.create(pk=stanza_id, text=text, queued_at=Now())


def take() -> dict[str, str]:
    """Return by id the stanzas that are to be sent now, and mark them as sent, so that each is sent once."""
    return dict(fetch(_TAKE, {"kept": KEPT}))


def note_answer(answer: IqAnswer, *, is_own: bool) -> None:
    """Record the answer to a stanza. ``is_own`` says that an error is the component's own."""
    error = (answer.condition or NO_CONDITION) if answer.is_error else ""
    write(_ANSWERED, {"id": answer.id, "error": error, "is_own": is_own and answer.is_error})
