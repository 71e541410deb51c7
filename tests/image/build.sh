#!/bin/sh
# Builds targets of the Dockerfile with Buildah, without a Docker engine:  tests/image/build.sh server reports
# Without the base image of the Dockerfile, it makes one under that name from Debian's own packages: Debian 12 with its
# Python 3.11. Packages come from the sources of this machine's apt and pip. Without root, Buildah and debootstrap nothing
# is built; with REQUIRE_ALL=1 that is a failure.
set -eu
cd "$(dirname "$0")/../.."
export BUILDAH_ISOLATION=chroot

missing() {   # requirements/system.sh has said what to do
    [ "${REQUIRE_ALL:-}" != 1 ] || echo "REQUIRE_ALL=1, but there is no $1." >&2
    [ "${REQUIRE_ALL:-}" != 1 ]
}

for program in buildah debootstrap; do
    command -v "$program" >/dev/null || { missing "$program"; exit; }
done
[ "$(id -u)" = 0 ] || { missing "root, who alone can make a base"; exit; }
BASE=$(sed -n 's/^FROM \(python:[^ ]*\) .*/\1/p' Dockerfile | sort -u)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

make_base() {
    echo "Making $BASE of Debian's packages (a minute or two) ..."
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$folder/base" \
        "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$folder/log" 2>&1 || { tail -n 5 "$folder/log"; exit 1; }
    ln -s python3 "$folder/base/usr/bin/python"
    cp /etc/ssl/certs/ca-certificates.crt "$folder/base/etc/ssl/certs/"   # a mirror may have an authority of its own
    rm -rf "$folder"/base/var/cache/apt/archives/*.deb "$folder"/base/var/lib/apt/lists/*
    tar -C "$folder/base" -cf "$folder/base.tar" .
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$folder/base.tar" / >/dev/null
    buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    buildah commit --quiet --rm "$container" "docker.io/library/$BASE" >/dev/null
}

build() {
    echo "Building $2 ..."
    buildah bud --pull-never --layers --target "$1" --tag "$2" --volume "$folder/uv.toml:/etc/uv/uv.toml:ro" \
        $pip . >"$folder/log" 2>&1 || { tail -n 30 "$folder/log"; exit 1; }
}

buildah inspect --type image "docker.io/library/$BASE" >/dev/null 2>&1 || make_base
echo "system-certs = true" >"$folder/uv.toml"
pip=
[ ! -e /etc/pip.conf ] || pip="--volume /etc/pip.conf:/etc/pip.conf:ro"
for target in "$@"; do
    build "$target" "$(echo "status-push-server-$target" | sed 's/-server$//')"
done
