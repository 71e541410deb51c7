"""The page "Drain", which stops delivery as a whole and starts it again."""

from collections.abc import Iterable, Sequence

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from kit.db.clock import database_now
from kit.display import exact
from notifications.models import Halt
from notifications.queues import halts
from pushserver.console.pages import labels
from pushserver.console.toolkit.operations import Done, Operation, OperationPage, confirm

DRAIN_ID = "drained"


class DrainOperation(Operation):
    """An operation on the drain, the one switch of the server."""

    permission = "notifications.operate_drain"

    def logged_as(self, row: Halt) -> tuple[str, str]:
        """Return one id for all drains, because each drain is a new row."""
        return DRAIN_ID, str(row)


class StartDraining(DrainOperation):
    """Stop delivery."""

    label = "Stop delivery"
    is_destructive = True

    def touched(self, rows: Sequence[Halt]) -> Iterable[str]:  # noqa: ARG002 - there is one switch
        return labels.STOP_EFFECTS

    def run(self, rows: Sequence[Halt], *, by: str) -> Done:  # noqa: ARG002 - there is one switch
        is_change = halts.begin(halts.Kind.DRAINED, by=by, reason=self.cleaned_data["why"], now=database_now())
        return Done(labels.STOPPED) if is_change else Done(labels.STOPPED_ALREADY, is_change=False)


class StopDraining(DrainOperation):
    """Start delivery again."""

    label = "Start delivery"

    def touched(self, rows: Sequence[Halt]) -> Iterable[str]:  # noqa: ARG002 - there is one switch
        drain = halts.drain()
        if drain:
            yield labels.STOPPED_BY.format(drain=drain, since=exact(drain.since))
        yield labels.START_EFFECT

    def run(self, rows: Sequence[Halt], *, by: str) -> Done:  # noqa: ARG002 - there is one switch
        is_change = halts.end(halts.Kind.DRAINED, by=by, now=database_now())
        return Done(labels.STARTED) if is_change else Done(labels.STARTED_ALREADY, is_change=False)


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
