"""What goes on, told to observers: counters, traces and logs are made of it elsewhere.

An observer is told after the fact and can change nothing. Nothing here imports a metrics or tracing library.
"""
