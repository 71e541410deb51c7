"""The operator's side of notifications: an app of its own, which the path does not import. See docs/console.md."""
