# The CPU server on Debian 12 with the demo model, from this checkout:
#   docker build -t troupe . && docker run --rm -p 8180:8180 troupe
# A model of yours: docker run -v /models:/models -p 8180:8180 troupe --host 0.0.0.0 --model /models/ERNIE-4.5-0.3B-PT
FROM debian:12 AS build
WORKDIR /src
COPY . .
RUN tools/setup serve \
 && cmake -S . -B build -G Ninja -DTROUPE_TESTS=OFF -DTROUPE_BENCH=OFF -DTROUPE_CUDA=OFF \
 && cmake --build build --target troupe \
 && cmake --install build --prefix /opt/troupe \
 && cp -rL build/models /opt/troupe/bin/models

FROM debian:12-slim
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends ca-certificates libcaf-core0.17 libcurl4 libgif7 libjpeg62-turbo \
    libpcre2-8-0 libpng16-16 libreadline8 libseccomp2 libsentencepiece0 libssl3 libstdc++6 libutf8proc2 libwebp7 libwebpdemux2 \
    libyaml-cpp0.7 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --create-home --home-dir /var/lib/troupe troupe
COPY --from=build /opt/troupe /opt/troupe
USER troupe
WORKDIR /var/lib/troupe
EXPOSE 8180
ENTRYPOINT ["/opt/troupe/bin/troupe", "serve"]
# In the container only: the port is as open as docker publishes it. Without a key the server warns.
CMD ["--host", "0.0.0.0"]
