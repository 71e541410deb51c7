"""`manage.py first_admin`: create the first user of the console when there is none. `manage.py up` runs it."""

import secrets
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand

NAME = "admin"


class Command(BaseCommand):
    help = "Create the user `admin` with a new password, shown this once, unless there is a user already."

    def handle(self, *_args: Any, **_options: Any) -> None:
        users = get_user_model()
        if users.objects.exists():
            return
        password = secrets.token_urlsafe(15)
        users.objects.create_superuser(username=NAME, password=password)
        # The password goes to the terminal and not to the log: this line is the only place where it ever appears.
        self.stdout.write(f"Console user: {NAME}, password: {password} (shown only now; `manage.py changepassword`)")
