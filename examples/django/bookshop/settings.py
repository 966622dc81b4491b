"""Django's settings. Those of twophp that differ between deployments are in TWOPHP_* variables."""

import secrets

SECRET_KEY = secrets.token_hex()  # Nothing that is signed here outlives the process.
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["bookshop"]
ROOT_URLCONF = "bookshop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# A file of its own: the ledger's belongs to the SQLite that twophp brings, and Django's may not open it.
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "bookshop.db"}}
