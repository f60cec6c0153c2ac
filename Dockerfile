# The orchestrator with its API and the web pages. It has no GDAL.
#
# `make images` builds it: it prepares the folder build/images, which is the build context (wheels of the locked
# requirements, the wheel of dagmaster, an SBOM). No package index is reached during the build.
#
#   BASE        image with Python 3.11 that the result is based on, by digest (NAME@sha256:…)
#   BUILD_BASE  image with Python 3.11, its venv module and a shell; of the same distribution as BASE
ARG BASE
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
COPY wheels/orchestrator/ dist/ /wheels/
RUN python3 -m venv /opt/dagmaster \
 && /opt/dagmaster/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-index --no-deps \
      /wheels/*.whl \
 && /opt/dagmaster/bin/python -m pip uninstall --quiet --yes setuptools pip \
 && mkdir -p /empty/data/storage /empty/tmp && chmod -R 0700 /empty/data && chmod 1777 /empty/tmp

FROM ${BASE}
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="dagmaster-orchestrator" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build --chown=10001:10001 /empty/ /
COPY --from=build /opt/dagmaster /opt/dagmaster
COPY healthcheck.py sbom/orchestrator.cdx.json /opt/dagmaster/share/
ENV PATH=/opt/dagmaster/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    DAGMASTER_DATA=/data \
    LOG_FORMAT=json \
    AUTH_ENABLED=true \
    API_HOST=0.0.0.0 \
    API_PORT=8000 \
    RUN_MODE=orchestrator
USER 10001:10001
WORKDIR /data
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/opt/dagmaster/bin/python", "-S", "/opt/dagmaster/share/healthcheck.py"]
ENTRYPOINT ["/opt/dagmaster/bin/dagmaster"]
