"""Console operations of Waku, on envelopes and dead letters. See docs/console.md."""
