"""Test-only gateway for Web Push. It is an app like any other, and no module outside this folder names it."""
