"""gorush as a gateway: it takes device tokens of Apple and Firebase. See docs/gorush.md."""
