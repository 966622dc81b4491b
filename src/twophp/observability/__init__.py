"""Events of a service, reported to observers: counters, traces and logs are made of them elsewhere.

An observer is called after the fact and can change nothing. Nothing here imports a metrics or tracing library.
"""
