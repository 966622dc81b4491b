"""The header contract: the draft's twelve fields, their values, and nothing that waits or remembers.

* ``fields``: the twelve names, and who may send which.
* ``grammar``: what a value may look like.
* ``instant``: RFC 3339 in milliseconds.
* ``paths``: a resource's path and the path that confirms it.
* ``parse``: a request's head, or an answer's, becomes a value.
* ``emit``: a value becomes header fields.
* ``problem``: a refusal becomes ``application/problem+json``.
* ``callback``: the five-field acknowledgement of auto-confirm.
"""
