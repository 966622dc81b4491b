"""The central ledger over HTTP: routes, documents, problems, the live feed and exports.

A route reads its request, asks ``questions`` or a store, and words the answer. Nothing here is SQL, and no rule
about rows is here.
"""
