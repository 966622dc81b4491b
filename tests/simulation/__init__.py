"""A deterministic simulation of clients, replicas, their network, their stores and their clocks; ADR 43.

Everything runs in one thread under one seed: the same seed makes the same run, line by line. The middleware, the
engine, the kernel, the client's flow, its ledger and its reconciler are the product's own; the event loop, the network,
the store's driver and all clocks are this package's.

    scheduler.py   processes with event loops of their own, virtual time, and the choice of who runs next
    machine.py     what a process stands on: a clock that may be set, and files that outlive it
    database.py    durable state: rows under version guards, and the journal
    driver.py      a ``Store`` over it: batches, trips that take time, commits that fail or stay unknown
    network.py     requests and answers as messages: late, lost, twice, cut off
    service.py     one replica: the middleware, and an application whose handlers act
    shop.py        a client with a ledger: callers that repeat, give up and come back, and the reconciler
    scripts.py     clients without a ledger, which confirm at the very deadline, many times, and as somebody else
    faults.py      what goes wrong, drawn from the seed
    oracle.py      what must hold at every step; verdict.py: what must hold at the end
    world.py       one run
    planted.py     ten bugs that the checks must find
"""
