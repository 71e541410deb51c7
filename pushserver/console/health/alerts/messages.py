"""Text and JSON of an alert, for mails and webhooks.

A webhook gets JSON. Chats with simple webhooks, such as Slack and Mattermost, show its ``text``; Google Chat gets
nothing else. Its ``id`` stays the same when an alert is sent again.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kit.display import exact
from pushserver.models import Alert, Incident

TEST = "This is a test. Alerts about the indicators of the push server arrive here."


@dataclass(frozen=True, slots=True)
class Message:
    """An alert as it is sent: the subject and text of a mail, or the JSON of a webhook."""

    id: str
    event: str
    subject: str
    sentence: str
    facts: dict[str, Any]

    @property
    def text(self) -> str:
        return f"{self.subject}. {self.sentence}"

    @property
    def json(self) -> dict[str, Any]:
        return {"id": self.id, "event": self.event, "text": self.text, **self.facts}


def about(incident: Incident, event: str, number: int = 0) -> Message:
    """Return the message about the beginning, a reminder or the end of an incident."""
    facts = {
        "indicator": incident.indicator,
        "name": incident.name,
        "state": incident.worst,
        "sentence": incident.sentence,
        "began_at": exact(incident.began_at),
        "ended_at": exact(incident.ended_at) if incident.ended_at else None,
    }
    own = incident.pk or f"{incident.indicator}-{incident.began_at:%Y%m%dT%H%M%S}"  # an incident without a row
    identity = f"{own}-{event}" + (f"-{number}" if number else "")
    return Message(identity, event, _subject(incident, event), _sentence(incident, event), facts)


def test_message(now: datetime) -> Message:
    """Return the message of a test."""
    return Message(f"test-{now:%Y%m%dT%H%M%S}", "test", "Push server: test", TEST, {})


def _subject(incident: Incident, event: str) -> str:
    state = "fine again" if event == Alert.Event.ENDED else incident.worst
    return f"Push server: {incident.name}: {state}"


def _sentence(incident: Incident, event: str) -> str:
    if event == Alert.Event.ENDED and incident.ended_at:
        return f"It was bad from {exact(incident.began_at)} to {exact(incident.ended_at)}: {incident.sentence}"
    since = f"Since {exact(incident.began_at)}: {incident.sentence}"
    return f"It goes on. {since}" if event == Alert.Event.STILL else since
