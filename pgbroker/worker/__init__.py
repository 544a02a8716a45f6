"""What is installed inside a Celery worker: signal handlers that let a row follow its task."""
