"""Delivery: from an accepted notification to an answer, in the batches of a worker process.

    accepted, or due again          the loop of the process               this process' memory
            │                                 │                                    │
      claim: attempt written ──commit──▶ Flights: one POST each ──results──▶ record: states written
            │                                                                      │
            └──▶ WaitingRequests ◀────────────── what each result says ────────────┘
                        │ all tried, or overdue
                        ▼
                 settle: reports fixed ──▶ the request's bridge

A push is sent by the process that wrote its attempt, after the commit. When that process dies, the lease of its
notifications ends, they are ambiguous and due again. A request whose worker died is overdue, and any worker settles it.

See docs/delivery.md.
"""
