"""Obligations against a store: reserve, commit, roll back, scan for leaks.

The rules are in ``core.obligation``; here they become changes of a store. The API for applications is
``twophp.obligations``; a handler reaches its own through ``current_intent().obligations``.
"""
