"""The stores, by the contract and by what is special about each."""
