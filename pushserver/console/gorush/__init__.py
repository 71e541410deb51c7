"""The operator's side of gorush: an app of its own, which the path does not import. See docs/console.md."""
