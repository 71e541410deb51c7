"""The second factor of staff: codes of an authenticator app (TOTP, RFC 6238).

Each login of a person with a second factor asks for a code. With REQUIRE_SECOND_FACTOR everybody must set one up first.
"""

import io
import time
from base64 import b32encode, b64encode
from typing import Any, cast

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.models import AnonymousUser
from django.contrib.auth.signals import user_login_failed
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django_otp import DEVICE_ID_SESSION_KEY
from django_otp import login as remember_device
from django_otp.oath import TOTP
from django_otp.plugins.otp_totp.models import TOTPDevice, default_key
from django_otp.qr import write_qrcode_image
from unfold.forms import AuthenticationForm
from unfold.widgets import UnfoldAdminTextInputWidget

from pushserver.console.pages import labels, logins

KEY_IN_SESSION = "second_factor_key"
CODE = {"inputmode": "numeric", "autocomplete": "one-time-code", "maxlength": 6}


def is_missing(request: HttpRequest) -> bool:
    """Return whether this person has a second factor, and gave no code in this session."""
    if request.user.is_anonymous:
        return False
    if DEVICE_ID_SESSION_KEY in request.session:
        return not is_verified(request)
    return _has_factor(request.user)


def _has_factor(user: Any) -> bool:
    """Return whether the user has a second factor.

    The database is read once per request, because several parts of a page need it.
    """
    if not hasattr(user, "has_second_factor"):
        user.has_second_factor = factor_of(user) is not None
    return bool(user.has_second_factor)


def is_verified(request: HttpRequest) -> bool:
    """Return whether this session began with a code. The middleware of django-otp adds the method."""
    user: Any = request.user
    return bool(user.is_verified())


def factor_of(user: Any) -> TOTPDevice | None:
    """Return the confirmed second factor of a user."""
    return TOTPDevice.objects.filter(user=user, confirmed=True).first()


class LoginForm(AuthenticationForm):  # type: ignore[misc]  # unfold has no types
    """Login with password and code on one page, so that a refusal does not show which of the two was wrong."""

    code = forms.CharField(
        required=False,
        label="Code",
        help_text=labels.CODE_AT_LOGIN,
        widget=UnfoldAdminTextInputWidget(attrs=CODE),
    )

    def clean_username(self) -> str:
        """Refuse a name that no account can have, because one of any length cannot be counted."""
        name: str = self.cleaned_data["username"]
        if len(name) > self.fields["username"].max_length:  # which Django shows to browsers, and does not check
            raise self.get_invalid_login_error()
        return name

    def clean(self) -> dict[str, Any]:
        """Check name, password and code. Raise LockedOutError before that while the name or the network is locked."""
        if self.request is not None and "username" in self.cleaned_data:
            logins.refuse_guesses(self.request, self.cleaned_data["username"])
        return cast(dict[str, Any], super().clean())

    def confirm_login_allowed(self, user: Any) -> None:
        """Refuse the login when the account has a second factor and the code is wrong."""
        super().confirm_login_allowed(user)
        device = factor_of(user)
        if device is None:
            return
        if not _accepts(device, self.cleaned_data.get("code", "")):
            self._count_as_failed(user)
            raise self.get_invalid_login_error()
        user.otp_device = device  # django-otp keeps it in the session

    def _count_as_failed(self, user: Any) -> None:
        """Report a wrong code as a failed login, as Django reports wrong passwords only."""
        credentials = {"username": user.get_username()}
        user_login_failed.send(sender=__name__, credentials=credentials, request=self.request)


def _accepts(device: TOTPDevice, code: str) -> bool:
    """Return whether the code is right now.

    Each code works once, and wrong codes slow down the next check. The row of the device counts them under its lock.
    """
    with transaction.atomic():
        locked = TOTPDevice.objects.select_for_update().get(pk=device.pk)
        is_allowed, _ = locked.verify_is_allowed()
        return bool(is_allowed and code.isdecimal() and locked.verify_token(code))


class SetUpForm(forms.Form):
    """Form for the first code, which proves that the authenticator app works."""

    code = forms.CharField(max_length=6, label="Code", widget=UnfoldAdminTextInputWidget(attrs=CODE))

    def __init__(self, device: TOTPDevice, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.device = device

    def clean_code(self) -> str:
        code: str = self.cleaned_data["code"]
        totp = TOTP(self.device.bin_key, self.device.step, self.device.t0, self.device.digits, self.device.drift)
        totp.time = time.time()
        if not (code.isdecimal() and totp.verify(int(code), self.device.tolerance, self.device.last_t + 1)):
            raise ValidationError(labels.CODE_REFUSED)
        self.device.last_t = totp.t()  # each code works once
        return code


@never_cache
@sensitive_post_parameters("code")
def set_up(request: HttpRequest) -> HttpResponse:
    """Show a key to scan, and a form for the first code. A person with a second factor sees that it is set up.

    Until the first code, the key is in the session only. So opening the page makes no second factor.
    """
    if isinstance(request.user, AnonymousUser) or factor_of(request.user):
        return _page(request, {})
    key = request.session.setdefault(KEY_IN_SESSION, default_key())
    device = TOTPDevice(user=request.user, name="authenticator", key=key, confirmed=True)
    form = SetUpForm(device, request.POST or None)
    if not form.is_valid():
        facts = {
            "form": form,
            "qr_code": _drawn(device.config_url),
            "key": b32encode(device.bin_key).decode().rstrip("="),
        }
        return _page(request, facts)
    device.save()
    del request.session[KEY_IN_SESSION]
    remember_device(request, device)
    messages.success(request, labels.SECOND_FACTOR_SET_UP)
    return redirect("admin:index")


def _page(request: HttpRequest, facts: dict[str, Any]) -> TemplateResponse:
    context = {**admin.site.each_context(request), "title": "My second factor", **facts}
    return TemplateResponse(request, "admin/second_factor.html", context)


def _drawn(url: str) -> str:
    """Return the QR code as a data URL, because its XML has prefixes that HTML does not allow."""
    drawing = io.BytesIO()
    write_qrcode_image(url, drawing)
    return f"data:image/svg+xml;base64,{b64encode(drawing.getvalue()).decode()}"


class SecondFactorMiddleware(MiddlewareMixin):
    """With REQUIRE_SECOND_FACTOR, redirects people without a second factor to the page that sets one up."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        if not settings.REQUIRE_SECOND_FACTOR or not request.path.startswith(reverse("admin:index")):
            return None
        if request.user.is_anonymous or is_verified(request):
            return None
        allowed = {reverse("second_factor"), reverse("admin:logout"), reverse("admin:login"), reverse("admin:jsi18n")}
        return None if request.path in allowed else HttpResponseRedirect(reverse("second_factor"))
