"""Processing envelopes: decode them, decide, and record every consequence."""
