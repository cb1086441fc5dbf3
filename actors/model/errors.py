"""Why a model cannot be served. The messages are for the person who named the model."""

from __future__ import annotations


class ModelError(Exception):
    """Base of the two below."""


class ModelNotFound(ModelError):
    """There is no such model, or it cannot be reached."""


class ModelUnusable(ModelError):
    """The model is there, but something it needs is missing, broken or not supported."""
