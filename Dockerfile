# Caddy with the rate limiter, built from this checkout:
#
#	docker build -t caddy-rate-limit .
#	docker run --rm -p 8080:8080 caddy-rate-limit
#
# The image serves /etc/caddy/Caddyfile, keeps certificates in /data, and runs without root.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
	go build -trimpath -ldflags '-s -w' -tags nobadger,nomysql,nopgx -o /caddy ./cmd/caddy

FROM caddy:2
COPY --from=build /caddy /usr/bin/caddy
COPY Caddyfile.example /etc/caddy/Caddyfile
RUN chown -R 10001:10001 /config /data
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
	CMD wget -q -O /dev/null http://127.0.0.1:2019/config/ || exit 1
