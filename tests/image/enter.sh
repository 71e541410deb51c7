#!/bin/sh
# Runs a command in the file system of an image as Docker would with compose.yaml's `read_only`, `cap_drop: [ALL]` and
# `no-new-privileges`:  unshare --mount tests/image/enter.sh ROOT SECRETS HOSTS TMPFS USER FOLDER VOLUMES COMMAND...
# SECRETS is a folder, HOSTS a file, TMPFS the options of /tmp, VOLUMES are `folder:path`, separated by spaces. The process
# itself becomes the command, so that signals reach it.
set -eu
root=$1 secrets=$2 hosts=$3 tmpfs=$4 user=$5 folder=$6 volumes=$7
shift 7
mount --make-rprivate /
mount --bind "$root" "$root"
mkdir -p "$root/run/secrets"
touch "$root/etc/hosts"
mount -o remount,bind,ro "$root"
mount --bind "$hosts" "$root/etc/hosts"
mount --bind "$secrets" "$root/run/secrets"
mount -o remount,bind,ro "$root/run/secrets"
mount -t tmpfs -o "$tmpfs" tmpfs "$root/tmp"
for volume in $volumes; do
    mount --bind "${volume%%:*}" "$root${volume#*:}"
done
mount --rbind /dev "$root/dev"
mount --bind /proc "$root/proc"
uid=$(sed -n "s/^$user:[^:]*:\([0-9]*\):.*/\1/p" "$root/etc/passwd")
gid=$(sed -n "s/^$user:[^:]*:[0-9]*:\([0-9]*\):.*/\1/p" "$root/etc/passwd")
exec chroot "$root" setpriv --reuid="$uid" --regid="$gid" --clear-groups --bounding-set=-all --inh-caps=-all \
    --no-new-privs env --chdir="$folder" "$@"
