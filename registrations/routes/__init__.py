"""Routes: the addresses that registrations lead to, and which of them are proven. See docs/delivery.md."""
