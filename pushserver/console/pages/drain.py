"""The page "Drain", which stops delivery as a whole and starts it again."""

from collections.abc import Mapping, Sequence

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from kit.db.clock import database_now
from kit.display import exact
from notifications.models import Halt
from notifications.queues import halts
from pushserver.console.toolkit.operations import Done, Operation, OperationPage, confirm, done

DRAIN_ID = "drained"


class DrainOperation(Operation):
    """An operation on the drain, the one switch of the server."""

    permission = "notifications.operate_drain"

    def logged_as(self, row: Halt) -> tuple[str, str]:
        """Return one id for all drains, because each drain is a new row."""
        return DRAIN_ID, str(row)


class StartDraining(DrainOperation):
    label = "Stop delivery"
    is_destructive = True
    effects = (
        "No worker takes a notification any more, from its next batch on. Notifications of the current batch are sent.",
        "Messages are still read, accepted and answered. Notifications wait, at most their time to live.",
    )

    def run(self, rows: Sequence[Halt], *, by: str) -> Done:  # noqa: ARG002 - there is one switch
        is_change = halts.begin(halts.Kind.DRAINED, by=by, reason=self.cleaned_data["why"], now=database_now())
        return done(is_change, "Delivery is stopped.", "Delivery was stopped already.")


class StopDraining(DrainOperation):
    label = "Start delivery"
    effects = ("{stopped}", "Waiting notifications are sent, in each queue in the order of their due times.")

    def facts(self, rows: Sequence[Halt]) -> Mapping[str, object]:  # noqa: ARG002 - there is one switch
        drain = halts.drain()
        stopped = f"{drain.by} stopped delivery at {exact(drain.since)}: {drain.reason}" if drain else ""
        return {"stopped": stopped or "Delivery runs already."}

    def run(self, rows: Sequence[Halt], *, by: str) -> Done:  # noqa: ARG002 - there is one switch
        is_change = halts.end(halts.Kind.DRAINED, by=by, now=database_now())
        return done(is_change, "Delivery runs again.", "Delivery ran already.")


OPERATIONS: dict[str, type[Operation]] = {"start": StartDraining, "stop": StopDraining}


def show_drain(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 - the same for everybody
    """Redirect to the page of the operation that is possible now."""
    return HttpResponseRedirect(reverse("change_drain", args=["stop" if halts.drain() else "start"]))


def change_drain(request: HttpRequest, operation: str) -> HttpResponse:
    """Confirm and run one operation.

    Each has a page of its own, so that a second click on one does not do the other.
    """
    if operation not in OPERATIONS:
        raise Http404
    page = OperationPage("Drain", request.path, reverse("admin:index"))
    return confirm(request, OPERATIONS[operation], [Halt(kind=Halt.Kind.DRAINED)], page)
