"""Log entries of logins, logouts and failed logins.

The name of a failed login is not logged, because some people type their password there. *Failed logins* has it.
"""

from typing import Any

import structlog
from django.contrib.auth import signals
from django.dispatch import receiver
from django.http import HttpRequest

from pushserver.console.accounts.addresses import client_address, client_network
from pushserver.console.accounts.login_queue import LOGINS

log = structlog.get_logger(__name__)


@receiver(signals.user_logged_in, dispatch_uid="log_login")
def log_login(request: HttpRequest, user: Any, **_rest: object) -> None:
    """Log a login, and remember its network."""
    LOGINS.remember(client_network(request) or "")
    log.info("login", user_id=user.pk, address=client_address(request))


@receiver(signals.user_logged_out, dispatch_uid="log_logout")
def log_logout(request: HttpRequest, user: Any, **_rest: object) -> None:
    """Log a logout, also one by `WorkingSessionMiddleware`."""
    log.info("logout", user_id=user and user.pk, address=client_address(request))


@receiver(signals.user_login_failed, dispatch_uid="log_failed_login")
def log_failed_login(request: HttpRequest | None = None, **_rest: object) -> None:
    """Log a failed login."""
    log.warning("login_failed", address=request and client_address(request))
