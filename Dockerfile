# syntax=docker/dockerfile:1
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
# Static, because the final image has no C library.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/homenode ./bindsvc
# A new volume takes owner and mode of the folder that it is mounted over: without this
# one it would belong to root, and the service could not write.
RUN install -d -m 0700 /out/data

# Nothing but certificates, time zones and a user: no shell, no package manager.
FROM gcr.io/distroless/static-debian12
COPY --from=build /out/homenode /usr/bin/homenode
COPY --from=build --chown=65532:65532 /out/data /data
ENV HOMENODE_DATA_DIR=/data
VOLUME /data
# Numeric, so that Kubernetes can verify runAsNonRoot.
USER 65532:65532
# 9090 internal, 9091 admin. Both listen on loopback unless HOMENODE_LISTEN and
# HOMENODE_ADMIN_LISTEN say otherwise; HOMENODE_ENDPOINT and HOMENODE_ADMIN_ENDPOINT
# must then say how Traefik reaches them.
EXPOSE 9090 9091
HEALTHCHECK --interval=5s --timeout=4s --start-period=30s --retries=3 CMD ["/usr/bin/homenode", "health"]
ENTRYPOINT ["/usr/bin/homenode"]
CMD ["serve"]
