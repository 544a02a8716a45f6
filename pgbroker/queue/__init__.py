"""The job queue itself. Knows neither Celery nor kombu."""
