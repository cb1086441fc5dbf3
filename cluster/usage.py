"""The error that ends a command with one line for its user."""

from __future__ import annotations


class UsageError(Exception):
    """What the user asked for cannot be done. The message is one line for them."""
