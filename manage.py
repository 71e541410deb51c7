#!/usr/bin/env python3
"""Command line of the push server: `python manage.py help` lists the commands."""

import os
import sys

import django
from django.core.management import call_command, execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushserver.settings")
    if sys.argv[1:] == ["version"]:  # Django would tell its own
        django.setup()
        call_command("version")
    else:
        execute_from_command_line(sys.argv)
