"""Delivery: from an accepted notification to an answer, in the batches of a worker process.

    accepted, or due again          the loop of the process               rows of requests
            │                                 │                                    │
      claim: attempt written ──commit──▶ PushSends: one POST each ──results──▶ record: states and reports written
                                                                                   │ no report is missing, or due
                                                                                   ▼
                                                                    settling: answered ──▶ the request's bridge

A push is sent by the process that wrote its claim, after the commit. When that process dies, the leases of its
notifications end: they become ambiguous, and due again. Its requests become overdue, and any worker answers them.

See docs/delivery.md.
"""
