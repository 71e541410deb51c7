"""`manage.py canary`: make one round trip through the whole chain and show it. The exit code is 0 if all links hold."""

from django.conf import settings

from pushserver.console.canary.command import CanaryCommand
from pushserver.console.canary.waku import canary


class Command(CanaryCommand):
    help = "Register, query, notify and unregister through the whole chain, and show which link is broken."
    canary = canary
    title = "Canary"
    labels = {  # noqa: RUF012 - a constant
        "register": "a node takes the registration",
        "register_answer": "its answer is back",
        "query": "a node takes the query",
        "query_answer": "its answer is back",
        "request": "a node takes the request",
        "gateway": "the gateway takes the push",
        "request_answer": "the answer to the request is back",
        "unregister": "a node takes the unregistering",
        "unregister_answer": "its answer is back",
    }

    def lacks(self) -> str:
        nodes = "WAKU_NODES is not set, and no embedded node is running. Start `manage.py up`."
        return "" if settings.WAKU_NODES else nodes
