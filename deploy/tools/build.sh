#!/bin/sh
# Builds the tools of `make check-deploy` from their Go modules into .tools. A folder here is a module whose go.mod names
# its tool; go.sum fixes every byte that goes into it. Quick when there is nothing to do.
set -eu
cd "$(dirname "$0")/../.."
export GOTOOLCHAIN=auto CGO_ENABLED=0   # an older Go fetches the one that go.mod asks for
mkdir -p .tools

key() {
    cat "deploy/tools/$1/go.mod" "deploy/tools/$1/go.sum" | sha256sum
}

for tool in compose helm kubeconform; do
    if [ -x ".tools/$tool" ] && [ "$(cat ".tools/$tool.key" 2>/dev/null)" = "$(key $tool)" ]; then continue; fi
    echo "Building $tool (minutes, the first time) ..."
    (cd "deploy/tools/$tool" && go build -mod=readonly -trimpath -ldflags="-s -w" -o "../../../.tools/$tool" tool)
    key $tool >".tools/$tool.key"
done

if [ "$(cat .tools/schemas.key 2>/dev/null)" != "$(key kubernetes)" ]; then
    echo "Reading Kubernetes' description of its API ..."
    module=$(cd deploy/tools/kubernetes && go mod download k8s.io/kubernetes && go list -mod=readonly -m -f '{{.Dir}}' k8s.io/kubernetes)
    rm -rf .tools/schemas
    python3 deploy/tools/schemas.py "$module/api/openapi-spec/swagger.json" .tools/schemas
    key kubernetes >.tools/schemas.key
fi
