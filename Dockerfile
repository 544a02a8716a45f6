# The sample application with pgbroker, for docker-compose.yml.
FROM python:3.13-slim

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY pgbroker pgbroker
# rich brings the Markdown parser that the sample application needs
RUN pip install --no-cache-dir '.[flower]' rich && useradd --system --no-create-home app
COPY celery_app celery_app

USER app
CMD ["celery", "-A", "celery_app", "worker", "--loglevel=INFO"]
