#!/bin/sh
# Builds real peers from their Go modules into .peers:  tests/interop/peers/build.sh gorush
# A folder here is a module whose go.mod names its peer as a tool; go.sum fixes every byte that goes into it. Quick when
# there is nothing to do. Without Go nothing is built; with REQUIRE_ALL=1 that is a failure.
set -eu
cd "$(dirname "$0")/../../.."
export CGO_ENABLED=0 GOTOOLCHAIN=auto   # one static file; an older Go fetches the one that go.mod asks for

if ! command -v go >/dev/null; then   # requirements/system.sh has said what to do
    [ "${REQUIRE_ALL:-}" != 1 ] || echo "REQUIRE_ALL=1, but there is no Go." >&2
    [ "${REQUIRE_ALL:-}" != 1 ]
    exit
fi
for peer in "$@"; do
    module=tests/interop/peers/$peer
    key=$(cat "$module/go.mod" "$module/go.sum" | sha256sum)
    if [ -x ".peers/$peer" ] && [ "$(cat ".peers/$peer.key" 2>/dev/null)" = "$key" ]; then continue; fi
    echo "Building $peer (minutes, the first time) ..."
    mkdir -p .peers
    tool=$(cd "$module" && go list -mod=readonly -f '{{.ImportPath}}' tool)
    version=$(cd "$module" && go list -mod=readonly -f '{{.Module.Version}}' tool)
    (cd "$module" && go build -mod=readonly -trimpath -ldflags="-s -w -X main.version=$version" \
        -o "../../../../.peers/$peer" "$tool")
    echo "$key" >".peers/$peer.key"
done
