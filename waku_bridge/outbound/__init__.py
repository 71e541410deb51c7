"""The way of replies to the network.

`outbox` has the rows of replies and the steps of a batch that write them. After the commit `sending` offers each reply
to nodes, and asks store nodes whether the network has it.

See docs/waku.md.
"""
