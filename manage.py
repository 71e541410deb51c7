#!/usr/bin/env python3
"""Command line of the push server: `python manage.py help` lists the commands."""

import os
import sys
from importlib import import_module

import django
from django.conf import settings
from django.core import checks
from django.core.management import call_command, execute_from_command_line
from django.db import OperationalError

from kit.db.reasons import words
from kit.processes import StartError
from pushserver.config import data_dir
from pushserver.config.role import begin_command

# The commands that start embedded servers, with the modules that choose where these listen.
ADDRESSES = {"up": "embedded.stack.parts", "demo": "embedded.demo.addresses"}


def main() -> None:
    command = "".join(sys.argv[1:2])
    begin_command(command)
    if command in ADDRESSES:
        data_dir.choose_by(import_module(ADDRESSES[command]).settings_of)
    if sys.argv[1:] == ["version"]:  # otherwise Django prints its own version
        django.setup()
        call_command("version")
    else:
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushserver.settings")
    try:
        main()
    except OperationalError as error:
        if settings.CONFIGURATION_PROBLEMS:  # a DATABASE_URL that is wrong was not used
            sys.exit("\n".join(str(found) for found in checks.run_checks() if found.is_serious()))
        if not words(error):
            raise
        sys.exit(f"manage.py: {words(error)}")
    except StartError as error:
        sys.exit(f"manage.py: {error}")
