"""What ends because nobody uses it, and what keeps a wrong clock, or weeks without pushes, from ending all of it.

See docs/limits.md.
"""
