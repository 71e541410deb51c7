"""Former name of the device tokens of the builder of rows."""

from tests.rig.rows import apn_token, firebase_token

__all__ = ["apn_token", "firebase_token"]
