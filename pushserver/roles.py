"""Three roles: `support` may view, `operator` may also act, and `admin` may also manage accounts.

Operators and admins may read the log of changes. The roles are groups, and each migration updates their permissions.
Accounts may have further groups.
"""

from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db.models import Q

from pushserver.console.parts import parts

OUR_APPS = ("registrations", "notifications", "spark_reports")
ACCOUNT_APPS = ("auth", "otp_totp")
# Operators may add, change and delete rows of these models only. The server records all others.
EDITED_MODELS = ("gatewayerrorrule", "app")
_READS_OURS = Q(content_type__app_label="pushserver", codename__in=("view_incident", "view_canaryrun"))
_TAKES_CARE = _READS_OURS | Q(content_type__app_label="pushserver", codename="operate_incident")
_EDITS = Q(codename__startswith="add_") | Q(codename__startswith="change_") | Q(codename__startswith="delete_")
_READS_THE_LOG = Q(content_type__app_label="admin", codename="view_logentry")
_MANAGES = Q(content_type__app_label__in=ACCOUNT_APPS) | Q(content_type__app_label="pushserver") | _READS_THE_LOG


def roles() -> dict[str, Q]:
    """Return a condition for the permissions of each role, including those over rows of bridges."""
    is_ours = Q(content_type__app_label__in=[*OUR_APPS, *(part.app_label for part in parts() if part.app_label)])
    looks = is_ours & Q(codename__startswith="view_") | _READS_OURS
    acts = is_ours & (~_EDITS | Q(content_type__model__in=EDITED_MODELS)) | _TAKES_CARE
    return {"support": looks, "operator": acts | _READS_THE_LOG, "admin": acts | _MANAGES}


def seed_roles(**_migrated: Any) -> None:
    """Give each role exactly its permissions. Running it again changes nothing."""
    for name, may in roles().items():
        role, _ = Group.objects.get_or_create(name=name)
        role.permissions.set(Permission.objects.filter(may))
