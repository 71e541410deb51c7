"""Delivery: from an accepted notification to an answer, in the batches of a worker process.

    accepted, or due again          the loop of the process               rows of requests
            │                                 │                                    │
      claim: in flight ──commit──▶ Delivery: one POST each ──results──▶ record: attempts, states and reports written
                                                                                   │ no report is missing, or due
                                                                                   ▼
                                                                    settling: answered ──▶ the request's bridge

A push is sent by the process that wrote its claim, after the commit. A claim is due when its lease ends. When the
process dies, whoever finds the row due writes the attempt as ambiguous, and decides about the row as about any other
that is due. Its requests become overdue, and any worker answers them.

See docs/delivery.md.
"""
