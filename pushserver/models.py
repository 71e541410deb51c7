"""The tables of the console, where Django looks for those of this app."""

from pushserver.console.models import *  # noqa: F403
