# The CPU server on Debian 12 with the demo model, from this checkout:
#   docker build -t troupe . && docker run --rm -p 8180:8180 troupe
# A model of yours: docker run -v /models:/models -p 8180:8180 troupe --host 0.0.0.0 --model /models/ERNIE-4.5-0.3B-PT
# podman drops HEALTHCHECK unless it builds with --format docker.
FROM debian:12-slim AS dependencies
WORKDIR /src
# What tools/setup reads, and no more: an edit elsewhere leaves this layer as it is.
COPY tools/setup tools/requirements-*.txt tools/
COPY tools/generate/make_demo_model.py tools/generate/demo_chat_template.jinja tools/generate/
RUN tools/setup serve && tools/setup package

FROM dependencies AS build
COPY . .
RUN tools/package deb

FROM debian:12-slim
# The package names the libraries. ca-certificates: for the hubs. Versions are those of Debian 12.
# hadolint ignore=DL3008
RUN --mount=type=bind,from=build,source=/src/build/package,target=/package \
    apt-get update -q \
 && apt-get install -y -q --no-install-recommends /package/troupe_*.deb ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 999 --create-home --home-dir /var/lib/troupe troupe
COPY --from=dependencies /src/build/models/SmolLM2-135M-Instruct /usr/share/troupe/models/SmolLM2-135M-Instruct
USER 999
WORKDIR /var/lib/troupe
EXPOSE 8180
# A large model may load for long; until then the container is "starting".
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m CMD ["/bin/sh", "-c", "troupe status | grep -q '^state *ready'"]
ENTRYPOINT ["troupe", "serve"]
# In the container only: the port is as open as docker publishes it. Without a key the server warns.
CMD ["--host", "0.0.0.0"]
