"""How models write reasoning and tool calls into their replies: told apart while they come, and asked for by grammars.

Pure. Nothing here knows of HTTP, routes or any API's shapes.
"""
