"""Routes: the addresses of registrations, and which of them are proven. See docs/delivery.md."""
