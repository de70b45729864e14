# Image for hinet serve: without torch, kernels compiled at build time, not run as root.
#   docker build --tag hinet .
#   docker run --publish 127.0.0.1:8000:8000 --volume ./model:/models/model:ro hinet

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/hinet \
    && /opt/hinet/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve,meaning]' \
    && /opt/hinet/bin/hinet compile

FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/hinet /opt/hinet
RUN useradd --system --uid 10001 --no-create-home hinet \
    && mkdir /models /feedback \
    && chown hinet /feedback
ENV PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["/opt/hinet/bin/python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
ENTRYPOINT ["/opt/hinet/bin/hinet", "serve", "--host", "0.0.0.0"]
CMD ["/models/model"]
