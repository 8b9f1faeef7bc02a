# For those who have an engine; `make image` makes the same image without one.
#   docker build --build-arg VERSION=$(git describe --tags --always) -t localhost/starfish:dev .
ARG GO=1.26
FROM golang:${GO} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN make build VERSION="$VERSION" \
 && mkdir -p /root-fs/usr/local/bin /root-fs/etc && install -d -m 1777 /root-fs/tmp \
 && cp bin/pserver bin/trainer bin/starfish /root-fs/usr/local/bin/ \
 && printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' >/root-fs/etc/passwd \
 && printf 'root:x:0:\nnonroot:x:65532:\n' >/root-fs/etc/group

FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title=starfish \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=$VERSION
COPY --from=build /root-fs/ /
ENV PATH=/usr/local/bin
USER 65532:65532
WORKDIR /
CMD ["starfish", "--help"]
