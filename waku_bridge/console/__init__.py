"""The console's side of Waku: operations on envelopes and dead letters. See docs/console.md."""
