"""What every flow does with a store beside ``transact``.

A stopped store is opened again, large changes are made a few at a time, rows are kept as long as they have to be. No
rule of a machine is here, and no driver is known here.
"""
