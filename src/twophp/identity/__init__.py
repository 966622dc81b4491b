"""Who asks: a request's head, and the way from it to the principal that an intent is bound to.

An edge makes a ``Head``; ``identify`` and its helpers turn it into a principal; guards ask for extra proof of a late
confirm. Nothing here knows a store, sends anything or keeps anything between two requests.
"""
