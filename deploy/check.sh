#!/bin/sh
# `make check-deploy`: compose.yaml against the Compose specification, the chart against Kubernetes' API, the units
# against systemd. Starts nothing and needs neither a cluster nor a Docker engine.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
KUBERNETES=1.34.1   # of deploy/tools/kubernetes/go.mod; a Helm built from its module knows only its own minor, as 1.20

missing() {   # with REQUIRE_ALL=1 (CI) that is a failure
    echo "$1" >&2
    [ "${REQUIRE_ALL:-}" != 1 ]
}

check_compose() {   # by the loader that `docker compose` itself is built on
    echo "compose.yaml"
    COMPOSE_PROFILES='*' .tools/compose -format json compose.yaml >"$folder/compose.json"
    .tools/compose -no-interpolation -format json compose.yaml deploy/compose/archive.yaml >"$folder/compose.json"
}

check_chart() {
    for values in values ci/everything ci/object-store; do
        echo "chart with $values.yaml"
        .tools/helm lint --strict --quiet --kube-version "$KUBERNETES" deploy/chart --values "deploy/chart/$values.yaml"
        .tools/helm template push deploy/chart --kube-version "$KUBERNETES" --values "deploy/chart/$values.yaml" \
            >"$folder/manifests.yaml"
        .tools/kubeconform -strict -summary -schema-location '.tools/schemas/{{.ResourceKind}}{{.KindSuffix}}.json' \
            "$folder/manifests.yaml"
    done
}

# In a root of its own, where the programs that the units start are there by name. systemd only warns about words that it
# does not know, so every word that it says counts.
check_units() {
    echo "systemd units"
    units=$folder/etc/systemd/system
    mkdir -p "$folder/usr/lib/systemd" "$folder/opt/push-server/.venv/bin" "$folder/opt/gorush" "$folder/bin"
    DESTDIR=$folder deploy/systemd/install.sh
    cp -R /usr/lib/systemd/system "$folder/usr/lib/systemd/"
    for program in opt/push-server/.venv/bin/python opt/push-server/.venv/bin/celery opt/push-server/.venv/bin/granian \
        opt/gorush/gorush bin/sh; do
        printf '#!/bin/sh\n' >"$folder/$program"
        chmod 755 "$folder/$program"
    done
    systemd-analyze verify --root="$folder" "$units"/*.target "$units"/*.service >"$folder/said" 2>&1 ||
        echo "systemd-analyze failed" >>"$folder/said"
    if [ -s "$folder/said" ]; then
        sed "s#$folder##g" "$folder/said" >&2
        return 1
    fi
}

if command -v go >/dev/null; then
    deploy/tools/build.sh
    check_compose
    check_chart
else
    missing "Go is missing: compose.yaml and the chart are not checked."
fi
if command -v systemd-analyze >/dev/null; then
    check_units
else
    missing "systemd-analyze is missing: the units are not checked."
fi
