#!/usr/bin/env bash
# Builds the test binaries that bench/gpu.sh runs, stripped, into binaries.txz in the folder given (default .carry/gpu), for a GPU machine
# without Go.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.carry/gpu}
mkdir -p "$out"
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
for pkg in internal/driver/libcuda internal/rt internal/agree internal/core internal/kernels internal/resnet internal/zoo conformance \
	optim nn memcheck bench compile sparse linalg; do
	CGO_ENABLED=0 go test -c -ldflags='-s -w' -o "$bin/$(basename "$pkg").test" "./$pkg"
done
CGO_ENABLED=0 go test -c -ldflags='-s -w' -tags planted -o "$bin/sanitize.test" ./internal/sanitize
CGO_ENABLED=0 go build -ldflags='-s -w' -o "$bin/digits" ./examples/digits
CGO_ENABLED=0 go build -ldflags='-s -w' -o "$bin/tenon" ./cmd/tenon
tar -C "$bin" -c . | xz --lzma2=preset=2,dict=256MiB >"$out/binaries.txz" # the dictionary finds what the binaries share
du -sh "$out/binaries.txz"
