"""`manage.py api_token create|list|revoke`: manage the tokens of the API from the command line."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from pushserver.console.models import ApiToken, NameTakenError


class Command(BaseCommand):
    help = "Makes, lists and revokes tokens of the REST API."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="make a token and show it, this once")
        create.add_argument("name", help="purpose of the token")
        create.add_argument("--scope", action="append", required=True, choices=ApiToken.Scope.values)
        create.add_argument("--days", type=int, help="days until it expires (default: never)")
        actions.add_parser("list", help="list tokens that are not revoked")
        actions.add_parser("revoke", help="revoke a token").add_argument("id", type=int)

    def handle(self, *_arguments: Any, action: str, **options: Any) -> None:
        getattr(self, f"_{action}")(**options)

    def _create(self, *, name: str, scope: list[str], days: int | None, **_options: Any) -> None:
        now = timezone.now()
        expires_at = now + timedelta(days=days) if days else None
        try:
            token = ApiToken(name=name, scopes=scope, expires_at=expires_at).issue(by="command line", now=now)
        except NameTakenError as error:
            raise CommandError(str(error)) from error
        self.stderr.write(f"Token {token.pk} with {', '.join(token.scopes)}; it is shown this once:")
        self.stdout.write(token.text)

    def _list(self, **_options: Any) -> None:
        for token in ApiToken.objects.filter(revoked_at=None).order_by("pk"):
            self.stdout.write(f"{token.pk}\t{token}\t{','.join(token.scopes)}\t{token.expires_at or 'never expires'}")

    def _revoke(self, *, id: int, **_options: Any) -> None:  # noqa: A002 - the name of the argument
        if not ApiToken.revoke([id], now=timezone.now()):
            raise CommandError(f"There is no token {id} that is not revoked.")
        self.stdout.write(f"Token {id} is revoked.")
