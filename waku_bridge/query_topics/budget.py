"""How much CPU time may go into work that others can ask for without limit: a bucket of CPU seconds."""

from kit.buckets import Bucket as CpuBudget

__all__ = ["CpuBudget"]
