#!/bin/sh
# Builds real peers from their Go modules into .peers:  tests/interop/peers/build.sh gorush waku status
# A folder here is a module whose go.mod names its peer as a tool; go.sum fixes every byte that goes into it. status-go
# is a library, and its program stands beside go.mod. A peer that is up to date is not rebuilt.
# Without Go nothing is built, without a C compiler no Waku node and no Messenger; with REQUIRE_ALL=1 that is a failure.
set -eu
cd "$(dirname "$0")/../../.."
export GOTOOLCHAIN=auto   # an older Go fetches the one that go.mod asks for

missing() {   # requirements/system.sh has said what to do
    [ "${REQUIRE_ALL:-}" != 1 ] || echo "REQUIRE_ALL=1, but there is no $1." >&2
    [ "${REQUIRE_ALL:-}" != 1 ]
}

command -v go >/dev/null || { missing Go; exit; }
for peer in "$@"; do
    module=tests/interop/peers/$peer
    key=$(cat "$module"/* | sha256sum)
    if [ -x ".peers/$peer" ] && [ "$(cat ".peers/$peer.key" 2>/dev/null)" = "$key" ]; then continue; fi
    case $peer in
        waku | status) export CGO_ENABLED=1   # signatures and SQLCipher are C
            command -v "$(go env CC)" >/dev/null || { missing "C compiler"; continue; } ;;
        *) export CGO_ENABLED=0 ;;   # one static file
    esac
    echo "Building $peer (minutes, the first time) ..."
    mkdir -p .peers
    tool=$(cd "$module" && go list -mod=readonly -f '{{.ImportPath}}' tool)
    version=$(cd "$module" && go list -mod=readonly -f '{{.Module.Version}}' tool)
    # Rate limiting by RLN comes as foreign binaries, and Status does without it. Each peer has one of the two variables.
    # An old dependency of status-go calls into the runtime in a way that linkers refuse since Go 1.23.
    (cd "$module" && go build -mod=readonly -trimpath -tags gowaku_no_rln \
        -ldflags="-checklinkname=0 -s -w -X main.version=$version -X github.com/waku-org/go-waku/waku/v2/node.Version=$version" \
        -o "../../../../.peers/$peer" "$tool")
    echo "$key" >".peers/$peer.key"
done
