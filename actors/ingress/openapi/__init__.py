"""The OpenAPI document of this server: kept by hand in the files beside this one, one for each API.

It is held to the code by tests: every route is in it, every field that is read is in it, its examples are answered, and
whatever is sent by it, or against it, never breaks anything.
"""

from actors.ingress.openapi.document import document

__all__ = ["document"]
