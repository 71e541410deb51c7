"""The gateway gorush, for device tokens of Apple and Firebase. See docs/gorush.md."""
