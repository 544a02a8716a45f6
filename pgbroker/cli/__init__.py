"""The command ``celery -A APP pgbroker``."""
