# The online service and nothing else. BASE may name a mirror or a digest; its Python must be 3.11, as the lock's is.
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS packages
# An index of one's own: --build-arg PIP_INDEX_URL=…
ARG PIP_INDEX_URL
COPY service/requirements.lock /build/requirements.lock
# Wheels only: nothing is compiled, so no compiler is needed. The packages' own tests and commands serve nobody here.
RUN python -m pip install --quiet --disable-pip-version-check --no-cache-dir --root-user-action=ignore \
      --only-binary=:all: --require-hashes --target=/packages --requirement=/build/requirements.lock && \
    rm -r /packages/bin && \
    find /packages -type d -name tests -prune -exec rm -r {} +
COPY service /app/service
COPY migrations /app/migrations
# A read-only root keeps no bytecode that is made later, and a start that compiles everything takes seconds.
# Nobody but root owns these files, so everybody must be able to read them, whatever the umask of the checkout was.
RUN python -m compileall -q --invalidation-mode=unchecked-hash /app && \
    chmod -R u+w,go-w,a+rX /app /packages && \
    mkdir /state

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="memorypolicy" \
      org.opencontainers.image.description="Ranks vLLM start-up configurations before launch" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# What installs packages has no use in a running service.
RUN python -m pip uninstall --quiet --yes --root-user-action=ignore setuptools wheel pip
COPY --from=packages /packages /packages
COPY --from=packages /app /app
COPY --from=packages --chown=10001:10001 /state /var/lib/memorypolicy
ENV PYTHONPATH=/packages \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MEMORYPOLICY_HOST=0.0.0.0 \
    MEMORYPOLICY_DATA_DIR=/var/lib/memorypolicy
WORKDIR /app
USER 10001:10001
VOLUME ["/var/lib/memorypolicy"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 CMD ["python", "-m", "service.health_check"]
ENTRYPOINT ["python", "-m", "service"]
CMD ["serve"]
