"""Failures in front of Apple and Google: a load balancer answers, or nothing does."""

from collections.abc import Mapping
from http import HTTPStatus

from embedded.gorush.outcomes import PAGE, Refusal
from tests.rig.providers.messages import Break, Reply

fail: Mapping[Refusal | None, Reply | Break] = {
    Refusal.HTML: Reply(HTTPStatus.BAD_GATEWAY, PAGE.encode(), {"content-type": "text/html"}),
    Refusal.LOST: Break.CLOSE,
    Refusal.RESET: Break.RESET,
}
