"""Celery's result backend on Postgres."""
