"""Delivery: from an accepted notification to an answer, in the batches of a worker process.

    accepted, or due again          the loop of the process               this process' memory
            │                                 │                                    │
      claim: attempt written ──commit──▶ PushSends: one POST each ──results──▶ record: states written
            │                                                                      │
            └──▶ WaitingRequests ◀────────────── what each result says ────────────┘
                        │ all tried, or overdue
                        ▼
                 settle: reports fixed ──▶ the request's bridge

A push is sent by the process that wrote its attempt, after the commit. When that process dies, the leases of its
notifications end: they become ambiguous, and due again. Its requests become overdue, and any worker settles them.

See docs/delivery.md.
"""
