"""The operator's side of the gateway."""
