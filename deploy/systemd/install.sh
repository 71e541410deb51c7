#!/bin/sh
# Puts the units, their account and push-server-manage in place, for the first time and after each `git pull`:
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
if [ -z "$root" ]; then
    systemd-sysusers
    systemctl daemon-reload
fi
