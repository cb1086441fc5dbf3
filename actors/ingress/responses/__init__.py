"""The Responses API: a response is a turn of a tree session, and conversations are sessions that are gone on with.

History is what sessions have anyway. What a response is beyond its turn (status, request, output items) is kept as a
result under its id; which session it belongs to is read off the id, by any replica and after any restart.
"""
