"""Access to the API: `Authorization: Bearer <token>`, one scope per endpoint."""

from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from pushserver.console.models import ApiToken

KEYWORD = b"bearer"


class Program:
    """A program that calls the API, with the attributes of a user that Django needs."""

    is_authenticated = True
    is_anonymous = is_staff = False
    pk = None


class BearerAuthentication(BaseAuthentication):
    """Accepts `Authorization: Bearer <token>` if the token exists, has not expired and was not revoked."""

    def authenticate(self, request: Request) -> tuple[Program, ApiToken] | None:
        """Return the program and its token, or None without a bearer token. Raises AuthenticationFailed."""
        keyword, _, text = get_authorization_header(request).partition(b" ")
        if keyword.lower() != KEYWORD:
            return None
        token = ApiToken.recognise(text.strip().decode(errors="replace"), now=timezone.now())
        if token is None:
            raise AuthenticationFailed("This token is unknown, expired or revoked.")
        return Program(), token

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002
        return "Bearer"


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = BearerAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:  # noqa: ARG002
        return {"type": "http", "scheme": "bearer", "description": "A token made in the console, under API tokens."}


class HasScope(BasePermission):
    """Allows a request whose token has the ``scope`` of the view."""

    message = "The token lacks the required scope."

    def has_permission(self, request: Request, view: Any) -> bool:
        return isinstance(request.auth, ApiToken) and view.scope in request.auth.scopes
