"""What follows logins, logouts and failed logins: log entries, and the counts of the locks against guessing.

The name of a failed login is not logged, because some people type their password there. *Failed logins* has it.
"""

from typing import Any

import structlog
from django.contrib.auth import signals
from django.dispatch import receiver
from django.http import HttpRequest

from pushserver.console.pages.accounts import guessing
from pushserver.console.pages.accounts.addresses import client_address, client_network
from pushserver.console.pages.accounts.login_queue import LOGINS

log = structlog.get_logger(__name__)


@receiver(signals.user_logged_in, dispatch_uid="log_login")
def log_login(request: HttpRequest, user: Any, **_rest: object) -> None:
    """Log a login, remember its network, and forget the failed logins before it."""
    LOGINS.remember(client_network(request) or "")
    guessing.forget_failures(request, user.get_username())
    log.info("login", user_id=user.pk, address=client_address(request))


@receiver(signals.user_logged_out, dispatch_uid="log_logout")
def log_logout(request: HttpRequest, user: Any, **_rest: object) -> None:
    """Log a logout, also one by `WorkingSessionMiddleware`."""
    log.info("logout", user_id=user and user.pk, address=client_address(request))


@receiver(signals.user_login_failed, dispatch_uid="log_failed_login")
def log_failed_login(credentials: dict[str, Any], request: HttpRequest | None = None, **_rest: object) -> None:
    """Log and count a failed login. Raise LockedOutError if it was one too many."""
    log.warning("login_failed", address=request and client_address(request))
    if request:
        guessing.count_failure(request, credentials["username"])
