"""Operator actions on rows: a page shows the effect, the operator confirms it with a reason, and the log keeps both.

An operation is a form with its permission, a description of its effect, and the use case that it calls. A use case
changes only rows that are still in the state that was shown. So a second click, or a second operator, changes nothing
and sees a warning.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

import structlog
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import OperationalError, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import mark_safe
from django.views.decorators.debug import sensitive_post_parameters
from unfold.admin import checkbox
from unfold.widgets import UnfoldAdminTextInputWidget

from kit.db.reasons import is_collision
from pushserver.console.toolkit.columns import hex_of
from pushserver.console.toolkit.related import WHY, Link
from pushserver.console.toolkit.search import is_id, is_number

log = structlog.get_logger(__name__)
# An operation changes at most this many rows. A page of a list shows fewer.
MAX_ROWS = 100
MAX_ATTEMPTS = 3
GONE = "None of these rows exists any more."
ALREADY = "Already done: nothing was changed."
CHOOSE_AGAIN = "Nothing was done, and the selection is lost. Choose the rows again."
# The parameter of an operation's address with the search and the filters of the list that it was started from.
NARROWED = "narrowed"
# The checkbox is rendered once: rendering it for each of fifty rows took longer than the rest of the rows.
_CHECKBOX = str(checkbox.render(ACTION_CHECKBOX_NAME, "ROW"))
_SECRET = re.compile(r"\S{32,}")
_HEX_PAIRS = re.compile("([0-9a-f]{2}){1,64}")


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an operation. ``message`` is for the operator and the log.

    ``is_change`` is false when nothing was left to change, such as after a second click.
    """

    message: str
    is_change: bool = True


def done(count: int, message: str, otherwise: str = ALREADY) -> Done:
    """Return the result of an operation that changed ``count`` rows. ``otherwise`` is its message without a change."""
    return Done(message if count else otherwise, is_change=bool(count))


class Operation(forms.Form):
    """One operator action on rows of one table."""

    label: ClassVar[str]
    permission: ClassVar[str]
    is_destructive: ClassVar[bool] = False
    # The operation may remove its rows. Afterwards the browser goes to the list instead of the page of a row.
    removes_rows: ClassVar[bool] = False
    # Sentences about its effect, with the `facts` by name.
    effects: ClassVar[Sequence[str]] = ()
    # Label of a second button, for forms with a preview of their effect.
    preview_label: ClassVar[str] = ""

    why = forms.CharField(
        max_length=200,
        label="Why",
        help_text="The log of changes keeps this reason. Enter no names of people, no keys and no ids.",
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )

    def clean_why(self) -> str:
        """Refuse a reason that contains a key or an id.

        Log entries outlive their rows, and readers of the log must not see keys.
        """
        why: str = self.cleaned_data["why"]
        if _SECRET.search(why):
            raise ValidationError("Remove the key or id from the reason.")
        return why

    def logged_as(self, row: Any) -> tuple[str, str]:
        """Return the id and the name of a row in the log of changes."""
        return id_of(row), str(row)

    @classmethod
    def fits(cls, row: Any) -> bool:  # noqa: ARG003 - for subclasses
        """Return whether the operation applies to the state of a row. Pages and lists offer only such operations."""
        return True

    @classmethod
    def fitting(cls, rows: Sequence[Any]) -> str:
        """Return how many of these rows the operation applies to, in words."""
        return f"{sum(map(cls.fits, rows))} of {len(rows)}"

    def facts(self, rows: Sequence[Any]) -> Mapping[str, object]:
        """Return what the effects say about these rows: to how many it applies (``fitting``), and their number."""
        return {"fitting": self.fitting(rows), "count": len(rows)}

    def touched(self, rows: Sequence[Any]) -> Iterable[str]:
        """Return sentences that describe the effect on these rows."""
        facts = self.facts(rows)
        return [sentence.format(**facts) for sentence in self.effects]

    def run(self, rows: Sequence[Any], *, by: str) -> Done:
        """Carry out the operation in the name of the account ``by``, and return the result."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OperationPage:
    """The page on which an operation is confirmed.

    ``url`` is the address of its form, ``back`` the page that it was started from, and ``after`` the page that follows
    it, where that is another one.
    """

    title: str
    url: str
    back: str
    after: str = ""


@sensitive_post_parameters("why")
def confirm(
    request: HttpRequest, form_class: type[Operation], rows: Sequence[Model], page: OperationPage, **initial: Any
) -> HttpResponse:
    """Show the effect of an operation, and carry it out when the operator has confirmed it.

    Raises PermissionDenied for an account without the permission of the operation.
    """
    if not request.user.has_perm(form_class.permission):
        raise PermissionDenied
    is_sent = {"confirmed", "preview"} & request.POST.keys()
    form = form_class(request.POST if is_sent else None, initial=initial)
    if "confirmed" in request.POST and form.is_valid():
        result = _carry_out(request, form, rows)
        messages.add_message(request, messages.SUCCESS if result.is_change else messages.WARNING, result.message)
        return HttpResponseRedirect(page.after or page.back)
    if "preview" in request.POST:
        form.errors.pop("why", None)  # a preview needs no reason
    context = {
        **admin.site.each_context(request),
        "title": page.title,
        "form": form,
        "touched": list(form.touched(rows)),
        "ids": [id_of(row) for row in rows if row.pk],
        "page": page,
    }
    return TemplateResponse(request, "console/confirm.html", context)


def _carry_out(request: HttpRequest, form: Operation, rows: Sequence[Model]) -> Done:
    """Make the change and its log entry in one transaction. Repeat it after a collision with a worker over a row."""
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        try:
            with transaction.atomic():
                result = form.run(rows, by=request.user.get_username())
                if result.is_change:
                    _note(request, form, rows, f"{result.message}{WHY}{form.cleaned_data['why']}")
                return result
        except OperationalError as error:
            if not attempts_left or not is_collision(error):
                raise
            log.info("operation_collided", operation=form.label)
    raise AssertionError  # the last attempt returned or raised


def _note(request: HttpRequest, form: Operation, rows: Iterable[Model], message: str) -> None:
    """Write one entry per row to the log of changes."""
    named = [(row, *form.logged_as(row)) for row in rows]
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=request.user.pk or 0,  # 0 is for the type checker: `confirm` has checked the account
            content_type=ContentType.objects.get_for_model(row),
            object_id=object_id,
            object_repr=name[:200],
            action_flag=CHANGE,
            change_message=message,
        )
        for row, object_id, name in named
    )


def id_of(row: Model) -> str:
    """Return the key of a row for URLs and forms: a number, a UUID, or the hex digits of a hash."""
    return hex_of(row.pk) if isinstance(row.pk, bytes) else str(row.pk)


class Operated:
    """Admin pages with operations, for the row of a page and for rows chosen in a list."""

    operations: ClassVar[dict[str, type[Operation]]] = {}

    # ModelAdmin has these attributes, and unfold hides its types.
    opts: Any
    admin_site: Any

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.operate)
        return [path("operate/<slug:name>/", view, name=self._url_name), *super().get_urls()]  # type: ignore[misc]

    @property
    def _url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_operate"

    def allowed(self, request: HttpRequest) -> dict[str, type[Operation]]:
        """Return the operations that the account of this request may carry out."""
        return {name: form for name, form in self.operations.items() if request.user.has_perm(form.permission)}

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {name: (None, name, form.label) for name, form in self.allowed(request).items()}

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list, which offers the operations that apply to one of its rows. Without any, rows have no box."""
        response: HttpResponse = super().changelist_view(request, extra_context)  # type: ignore[misc]
        context = getattr(response, "context_data", None) or {}
        if form := context.get("action_form"):
            rows, field = context["cl"].result_list, form.fields["action"]
            fitting = {name for name, operation in self.operations.items() if any(map(operation.fits, rows))}
            field.choices = [(name, text) for name, text in field.choices if name in {"", *fitting}]
            if not fitting:
                context["action_form"] = None
                context["cl"].list_display.remove("action_checkbox")
        return response

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        row = context["original"]  # None on the page that adds a row
        context["operations"] = self.links_to(request, row) if row else []
        return super().render_change_form(request, context, *args, **kwargs)  # type: ignore[misc]

    def links_to(self, request: HttpRequest, row: Model) -> list[Link]:
        """Return links to the operations that apply to the state of a row and that this account may carry out."""
        fitting = ((name, form) for name, form in self.allowed(request).items() if form.fits(row))
        return [Link(form.label, self._url_of(name, [row])) for name, form in fitting]

    @admin.display(description=mark_safe(checkbox.render("action_toggle_all", 1)))  # noqa: S308 - from the theme
    def action_checkbox(self, obj: Model) -> str:
        return mark_safe(_CHECKBOX.replace("ROW", id_of(obj)))  # noqa: S308 - a number, a UUID, or digits

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Start the operation of a list on the rows that were chosen there. Rows that match only now are left out."""
        name = request.POST.get("action", "")
        if name not in self.operations:
            messages.warning(request, "Choose an action.")
            return None
        if not request.POST.getlist(ACTION_CHECKBOX_NAME):
            messages.warning(request, "Choose the rows first.")
            return None
        return self.operate(request, name, narrowed=request.GET.urlencode())

    def operate(self, request: HttpRequest, name: str, narrowed: str = "") -> HttpResponse:
        """Show and carry out one operation, on the rows that the request names.

        ``narrowed`` is the query string with the search and the filters of the list in which the rows were chosen. It
        stays in the address, so that the operator returns to the same list.
        """
        form_class = self.operations.get(name)
        if form_class is None:
            raise Http404
        sent = request.POST if request.method == "POST" else request.GET
        ids = sent.getlist(ACTION_CHECKBOX_NAME) or sent.getlist("id")
        rows = self.chosen(request, ids)
        pages = f"admin:{self.opts.app_label}_{self.opts.model_name}"
        narrowed = narrowed or request.GET.get(NARROWED, "")
        all_rows = reverse(f"{pages}_changelist") + (f"?{QueryDict(narrowed).urlencode()}" if narrowed else "")
        if not rows:
            messages.warning(request, GONE if ids else CHOOSE_AGAIN)
            return HttpResponseRedirect(all_rows)
        is_from_page = len(rows) == 1 and not narrowed
        back = reverse(f"{pages}_change", args=[id_of(rows[0])]) if is_from_page else all_rows
        subject = str(rows[0]) if len(rows) == 1 else f"{len(rows)} {self.opts.verbose_name_plural}"
        after = all_rows if form_class.removes_rows else back
        page = OperationPage(f"{form_class.label}: {subject}", self._url_of(name, rows, narrowed), back, after)
        return confirm(request, form_class, rows, page)

    def _url_of(self, name: str, rows: Sequence[Model], narrowed: str = "") -> str:
        """Return the address of an operation.

        For a single row it includes the row's id, so that somebody who has to log in first returns to that row.
        """
        named = {"id": id_of(rows[0])} if len(rows) == 1 else {}
        query = urlencode(named | ({NARROWED: narrowed} if narrowed else {}))
        return reverse(f"admin:{self._url_name}", args=[name]) + (f"?{query}" if query else "")

    def chosen(self, request: HttpRequest, ids: Sequence[str]) -> list[Any]:
        """Return the chosen rows that still exist, at most `MAX_ROWS`."""
        keys = [self.key_from(text) for text in ids[:MAX_ROWS]]
        rows = self.get_queryset(request).filter(pk__in=[key for key in keys if key is not None])  # type: ignore[attr-defined]
        return list(rows.order_by("pk"))

    def key_from(self, text: str) -> int | bytes | UUID | None:
        """Return the key of a row from its text in the request, or None for a text that is no key."""
        kind = self.opts.pk.get_internal_type()
        if kind == "BinaryField":
            return bytes.fromhex(text) if _HEX_PAIRS.fullmatch(text) else None
        if kind == "UUIDField":
            return UUID(text) if is_id(text) else None
        return int(text) if is_number(text) else None
