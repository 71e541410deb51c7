"""Former name of the builder of rows."""

from tests.rig.rows import *  # noqa: F403
