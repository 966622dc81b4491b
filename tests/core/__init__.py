"""The pure rules, shown by tables, by models that know nothing of the tables, and by walks through both."""
