#!/bin/sh
# Puts the units with their secrets, their account and push-server-manage in place, first and after each `git pull`:
#   deploy/systemd/install.sh && systemctl restart push-server.target
# With DESTDIR it writes below that folder, and systemd hears nothing of it.
set -eu
cd "$(dirname "$0")"
root=${DESTDIR:-}
install -D -m 644 push-server.sysusers "$root/etc/sysusers.d/push-server.conf"
install -D -m 755 push-server-manage "$root/usr/local/sbin/push-server-manage"
for unit in *.service *.target *.d/*; do
    install -D -m 644 "$unit" "$root/etc/systemd/system/$unit"
done
# A secret is a file of root's (mode 600). Without one an empty line takes its place, which counts as unset.
rm -f "$root"/etc/systemd/system/push-server-*.service.d/00-secrets.conf
grep -v '^#' secrets | while read -r name processes; do
    variable=$(echo "$name" | tr '[:lower:]' '[:upper:]')_FILE
    for process in $processes; do
        conf=$root/etc/systemd/system/push-server-$process.service.d/00-secrets.conf
        install -d "${conf%/*}"
        [ -e "$conf" ] || echo '[Service]' >"$conf"
        cat >>"$conf" <<END
LoadCredential=$name:/etc/push-server/secrets/$name
SetCredential=$name:\\n
Environment=$variable=%d/$name
END
    done
done
if [ -z "$root" ]; then
    systemd-sysusers
    systemctl daemon-reload
fi
