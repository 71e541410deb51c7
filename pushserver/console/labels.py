"""One word for each thing: what the menu calls a table of Django or its packages, its pages call it, too."""

from collections.abc import Mapping
from typing import NamedTuple

from django.apps import apps


class Words(NamedTuple):
    """The name of one row and of the list."""

    singular: str
    plural: str


NAMES: Mapping[str, Words] = {
    "auth.User": Words("account", "accounts"),
    "auth.Group": Words("role", "roles"),
    "otp_totp.TOTPDevice": Words("second factor", "second factors"),
    "axes.AccessAttempt": Words("failed login", "failed logins"),
    "admin.LogEntry": Words("change", "changes"),
}
# What the menu calls the apps that these tables belong to.
STAFF_APPS = ("auth", "otp_totp", "axes", "admin", "pushserver")


def name_things() -> None:
    """Give tables and apps the names that the menu has for them.

    Migrations are made from what a model's class says, which stays as it is.
    """
    for name, words in NAMES.items():
        meta = apps.get_model(name)._meta  # noqa: SLF001 - the documented way
        meta.verbose_name, meta.verbose_name_plural = words
    for label in STAFF_APPS:
        apps.get_app_config(label).verbose_name = "Staff"
