#!/bin/sh
# System parts:  requirements/system.sh buildah chromium compiler ejabberd go java postgresql prosody systemd
# Installs what is missing where that is possible (root, apt), and otherwise names it in one line. Never fails for that:
# tests without their part are skipped with the reason, or fail with REQUIRE_ALL=1.
#   requirements/system.sh --package NAME...   installs the first of these Debian packages that exists
set -eu

install_first_of() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then return 1; fi
    for attempt in now updated; do
        for package in "$@"; do
            if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1
            then return 0; fi
        done
        if [ "$attempt" = now ]; then apt-get update -qq >/dev/null 2>&1 || return 1; fi
    done
    return 1
}

# A package with a server starts it as a service. Nobody here needs that one, and it would take the usual ports.
install_without_starting() {
    policy=/usr/sbin/policy-rc.d
    if [ "$(id -u)" != 0 ] || [ -e "$policy" ]; then install_first_of "$1"; return; fi
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    status=0
    install_first_of "$1" || status=1
    rm "$policy"
    if command -v systemctl >/dev/null; then systemctl disable --quiet "$1" 2>/dev/null || true; fi
    return $status
}

has_java() {
    java -version 2>&1 | grep -Eq 'version "(17|21)[."]'
}

has_chromium() {
    for name in chromium-headless-shell chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then return 0; fi
    done
    return 1
}

# 1.21 is the first that fetches the toolchain a go.mod asks for.
has_go() {
    go version 2>/dev/null | grep -Eq 'go1\.(2[1-9]|[3-9][0-9])'
}

# Part of Prosody from 13, of prosody-modules before.
has_cloud_notify() {
    for folder in /usr/lib/prosody/modules /usr/share/lua/5.4/prosody; do
        if [ -e "$folder/mod_cloud_notify" ] || [ -e "$folder/mod_cloud_notify.lua" ]; then return 0; fi
    done
    return 1
}

offers_go() {
    apt-cache show golang-go 2>/dev/null | grep -Eq '^Version: 2:1\.(2[1-9]|[3-9][0-9])'
}

if [ "${1:-}" = --package ]; then
    shift
    install_first_of "$@"
    exit
fi
for part in "$@"; do
    case $part in
        java) has_java || { echo "Installing Java ..."; install_first_of openjdk-17-jre-headless openjdk-21-jre-headless; } ||
            echo "Java 17 or 21 is missing (on Debian: apt-get install openjdk-17-jre-headless): no Spark reports." >&2 ;;
        chromium) has_chromium || { echo "Installing Chromium ..."; install_first_of chromium; } ||
            echo "Chromium is missing (on Debian: apt-get install chromium): no browser tests." >&2 ;;
        go) has_go || { offers_go && echo "Installing Go ..." && install_first_of golang-go; } ||
            echo "Go 1.25 or newer is missing (go.dev/dl; golang-go of Debian 12 is too old): no real peers." >&2 ;;
        buildah) { command -v buildah && command -v debootstrap; } >/dev/null ||
            { echo "Installing Buildah ..."; install_first_of buildah && install_first_of debootstrap; } ||
            echo "Buildah or debootstrap is missing (on Debian: apt-get install buildah debootstrap): no images." >&2 ;;
        compiler) command -v cc >/dev/null || command -v gcc >/dev/null ||
            { echo "Installing a C compiler ..."; install_first_of gcc && install_first_of libc6-dev; } ||
            echo "A C compiler is missing (on Debian: apt-get install gcc libc6-dev): no Waku node." >&2 ;;
        postgresql) [ -n "$(ls /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] ||
            { echo "Installing PostgreSQL ..."; install_without_starting postgresql; } ||
            echo "PostgreSQL is missing (on Debian: apt-get install postgresql): no tests on what operators have." >&2 ;;
        prosody) command -v prosody >/dev/null || { echo "Installing Prosody ..."; install_without_starting prosody; } ||
            echo "Prosody is missing (on Debian: apt-get install prosody prosody-modules): no XMPP server." >&2
            has_cloud_notify || install_without_starting prosody-modules ||
            echo "Prosody has no mod_cloud_notify (on Debian: apt-get install prosody-modules): no XEP-0357." >&2 ;;
        systemd) command -v systemd-analyze >/dev/null || { echo "Installing systemd ..."; install_first_of systemd; } ||
            echo "systemd-analyze is missing (on Debian: apt-get install systemd): units are not checked." >&2 ;;
        ejabberd) command -v ejabberdctl >/dev/null || [ -x /usr/sbin/ejabberdctl ] ||
            { echo "Installing ejabberd ..."; install_without_starting ejabberd; } ||
            echo "ejabberd is missing (on Debian: apt-get install ejabberd): no second XMPP server." >&2 ;;
        *) echo "unknown system part: $part" >&2; exit 2 ;;
    esac
done
