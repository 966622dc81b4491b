"""A bookshop, as a Django project of one app."""
