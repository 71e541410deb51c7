"""What all apps measure, as Prometheus asks for it, and the page about it."""
