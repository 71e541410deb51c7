"""Processing of envelopes: decode them, decide, and record every consequence. See docs/architecture.md."""
