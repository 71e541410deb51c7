#!/bin/sh
# System parts:  requirements/system.sh PART..., each by its name in `describe`
# As root on a system with apt, installs missing parts. Otherwise prints one line for each, with the packages of this
# distribution. A missing part is no failure here: its tests are skipped with the reason, or fail with REQUIRE_ALL=1.
#   requirements/system.sh --package NAME...   installs the first of these Debian packages that exists
#   requirements/system.sh --chromium          prints a browser that tests can control, and fails without one
set -eu

# Describes a part: its name, the effect of its absence, and its packages. `a|b` means the first package that exists. If
# the list of a distribution is empty, `instead` tells what to do. Only the packages of Debian were tried; the others are
# from the package lists of those distributions and the websites of the programs.
describe() {
    instead='' ubuntu='' fedora='' arch='' is_server=''
    case $1 in
        buildah) what="Buildah or debootstrap" without="no images"
            debian="buildah debootstrap" ubuntu=$debian fedora=$debian arch=$debian ;;
        chromium) what="A Chromium that is no snap" without="no browser tests"
            debian="chromium-headless-shell|chromium" fedora=chromium-headless arch=chromium
            instead="on Ubuntu: Google's own package of Chrome, or a container of Debian; tests cannot control a snap" ;;
        compiler) what="A C compiler" without="no Waku node"
            debian="gcc libc6-dev" ubuntu=$debian fedora=gcc arch=gcc ;;
        ejabberd) what=ejabberd without="no second XMPP server" is_server=1
            debian=ejabberd ubuntu=ejabberd arch=ejabberd
            instead="Fedora has no package of it: use a container of Debian" ;;
        go) what="Go 1.21 or newer" without="no real peers"
            debian=golang-go ubuntu=golang-go fedora=golang arch=go
            instead="from go.dev/dl, as golang-go is too old here" ;;
        java) what="Java 17 or 21" without="no Spark reports"
            debian="openjdk-17-jre-headless|openjdk-21-jre-headless" ubuntu=$debian
            fedora=java-21-openjdk-headless arch=jre21-openjdk-headless ;;
        maven) what=Maven without="no lake on S3"
            debian=maven ubuntu=maven fedora=maven arch=maven ;;
        postgresql) what="Debian's PostgreSQL or PgBouncer" without="no tests on what operators have" is_server=1
            debian="postgresql pgbouncer" ubuntu=$debian instead="use a container of Debian" ;;
        prometheus) what=promtool without="no test of the alert rules" is_server=1
            debian=prometheus ubuntu=prometheus fedora=golang-github-prometheus arch=prometheus ;;
        prosody) what="Prosody or its mod_cloud_notify" without="no XMPP server" is_server=1
            debian="prosody prosody-modules" ubuntu=$debian fedora=prosody arch=prosody ;;
        redis) what="Debian's Redis" without="no test on the Redis that operators have" is_server=1
            debian=redis-server ubuntu=redis-server instead="use a container of Debian" ;;
        systemd) what=systemd-analyze without="units are not checked"
            debian=systemd ubuntu=systemd fedora=systemd arch=systemd ;;
        *) echo "unknown system part: $1" >&2; exit 2 ;;
    esac
}

has() {
    case $1 in
        buildah) has_program buildah && has_program debootstrap ;;
        chromium) find_chromium >/dev/null ;;
        compiler) has_program cc || has_program gcc ;;
        ejabberd) has_program ejabberdctl || [ -x /usr/sbin/ejabberdctl ] ;;
        # 1.21 is the first version that fetches the toolchain that a go.mod names.
        go) go version 2>/dev/null | grep -Eq 'go1\.(2[1-9]|[3-9][0-9])' ;;
        java) java -version 2>&1 | grep -Eq 'version "(17|21)[."]' ;;
        maven) has_program mvn ;;
        postgresql) [ -n "$(ls /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] && [ -x /usr/sbin/pgbouncer ] ;;
        prometheus) has_program promtool ;;
        prosody) has_program prosody && has_cloud_notify ;;
        redis) has_program redis-server ;;
        systemd) has_program systemd-analyze ;;
    esac
}

has_program() {
    command -v "$1" >/dev/null
}

# mod_cloud_notify is part of Prosody from version 13 on, and before that of prosody-modules.
has_cloud_notify() {
    for folder in /usr/lib/prosody/modules /usr/lib64/prosody/modules /usr/share/lua/5.4/prosody; do
        if [ -e "$folder/mod_cloud_notify" ] || [ -e "$folder/mod_cloud_notify.lua" ]; then return 0; fi
    done
    return 1
}

# Prints the first browser that is installed. The headless one comes first, because it starts faster. Ubuntu's
# chromium-browser is only a script for a snap, but Fedora's is the browser itself.
find_chromium() {
    for name in chromium-headless-shell /usr/lib64/chromium-browser/headless_shell chromium chromium-browser \
        google-chrome google-chrome-stable; do
        program=$(command -v "$name") || continue
        case $(readlink -f "$program") in /snap/* | */snap) continue ;; esac
        case $(timeout 20 "$program" --version 2>/dev/null || true) in
            *snap*) ;;
            *[0-9].[0-9]*) echo "$program"; return ;;
        esac
    done
    return 1
}

# Prints debian, ubuntu, fedora, arch or nothing: this distribution, or the one on which it is based.
family() {
    for file in "${SYSTEMD_OS_RELEASE:-/etc/os-release}" /usr/lib/os-release; do
        if [ ! -r "$file" ]; then continue; fi
        for name in $(sed -n 's/^ID=//p; s/^ID_LIKE=//p' "$file" | tr -d "\"'"); do
            case $name in debian | ubuntu | fedora | arch) echo "$name"; return ;; esac
        done
    done
}

packages() {   # of the part that `describe` has set
    case $(family) in
        ubuntu) echo "$ubuntu" ;;
        fedora) echo "$fedora" ;;
        arch) echo "$arch" ;;
        *) echo "$debian" ;;
    esac
}

# Prints one package of each alternative: the first that apt finds, or without apt the first.
one_of_each() {
    for alternatives in $(packages); do
        for name in $(echo "$alternatives" | tr '|' ' '); do
            if apt-cache show "$name" >/dev/null 2>&1; then break; fi
            name=${alternatives%%|*}
        done
        printf '%s ' "$name"
    done
}

hint() {
    names=$(one_of_each)
    if [ -z "$names" ] || ! is_offered "$1"; then echo "$instead"; return; fi
    case $(family) in
        ubuntu) echo "on Ubuntu: apt-get install ${names% }" ;;
        fedora) echo "on Fedora: dnf install ${names% }" ;;
        arch) echo "on Arch: pacman -S ${names% }" ;;
        *) echo "on Debian: apt-get install ${names% }" ;;
    esac
}

can_install() {
    [ "$(id -u)" = 0 ] && has_program apt-get
}

install_first_of() {
    can_install || return 1
    for attempt in now updated; do
        for package in "$@"; do
            if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1
            then return 0; fi
        done
        if [ "$attempt" = now ]; then apt-get update -qq >/dev/null 2>&1 || return 1; fi
    done
    return 1
}

# The package of a server starts it as a service, which nothing here needs, and which would use the default ports.
install_without_starting() {
    policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then install_first_of "$1"; return; fi
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    status=0
    install_first_of "$1" || status=1
    rm "$policy"
    if has_program systemctl; then systemctl disable --quiet "$1" 2>/dev/null || true; fi
    return $status
}

# golang-go of Debian 12 and Ubuntu 22.04 is too old.
is_offered() {
    [ "$1" != go ] || ! has_program apt-cache ||
        apt-cache show golang-go 2>/dev/null | grep -Eq '^Version: 2:1\.(2[1-9]|[3-9][0-9])'
}

install_part() {
    can_install && is_offered "$1" && [ -n "$(packages)" ] || return 1
    echo "Installing $(one_of_each)..."
    for alternatives in $(packages); do
        # shellcheck disable=SC2046 # names of packages
        set -- $(echo "$alternatives" | tr '|' ' ')
        if [ -n "$is_server" ]; then install_without_starting "$1"; else install_first_of "$@"; fi || return 1
    done
}

case ${1:-} in
    --package) shift; install_first_of "$@"; exit ;;
    --chromium) find_chromium; exit ;;
esac
for part in "$@"; do
    describe "$part"
    if has "$part"; then continue; fi
    if install_part "$part" && has "$part"; then continue; fi
    echo "$what is missing ($(hint "$part")): $without." >&2
done
