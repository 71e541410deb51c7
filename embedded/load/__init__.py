"""Load generators: through Waku (`waku`) and through XMPP (`xmpp`). See docs/canary.md."""
