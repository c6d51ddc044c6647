#!/bin/sh
# Builds one target of the Dockerfile without a Docker engine and runs it with the restrictions of deploy/kubernetes:
# read-only root, user 10001, no capabilities. Needs root on Debian, debootstrap and buildah:
#   deploy/rehearse-image.sh cpu|cuda FOLDER [options for buildah bud, such as --volume /etc/pip.conf:/etc/pip.conf:ro]
# The base is Debian's Python, not the official image. FOLDER grows to about 15 GB; delete it afterwards.
set -eu
target=$1 folder=$2
shift 2
root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd -P)
port=${TURBOFNO_PORT:-18080}

mkdir -p "$folder"
printf '[storage]\ndriver = "vfs"\nrunroot = "%s/run"\ngraphroot = "%s/store"\n' "$folder" "$folder" > "$folder/storage.conf"
export CONTAINERS_STORAGE_CONF="$folder/storage.conf"

if [ ! -d "$folder/base" ]; then
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$folder/base"
fi
base=$(buildah from --isolation chroot scratch)
buildah add --quiet "$base" "$folder/base" /
buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$base"
buildah commit --quiet --rm "$base" localhost/python:rehearsal

# No layers: the vfs driver copies the whole tree for each.
buildah bud --isolation chroot --format docker --layers=false --build-arg PYTHON_IMAGE=localhost/python:rehearsal \
    --target "$target" --tag "localhost/turbofno:$target" "$@" "$root"

container=$(buildah from --isolation chroot "localhost/turbofno:$target")
tree=$(buildah mount "$container")
echo "size: $(du -sh "$tree" | cut -f1)"
variables=$(buildah inspect --type image --format '{{range .Docker.Config.Env}}{{.}} {{end}}' "localhost/turbofno:$target")

# shellcheck disable=SC2016,SC2086  # $0 belongs to the inner shell; the variables contain no spaces
unshare --mount sh -euc '
    mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"
    mount -t tmpfs tmpfs "$0/tmp" && mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev"
    if touch "$0/app/file" 2> /dev/null; then echo "the root is writable" >&2; exit 1; fi
    exec env -i "$@" chroot "$0" sh -c "cd /app && exec setpriv --reuid 10001 --regid 10001 --clear-groups \
        --inh-caps=-all --bounding-set=-all --no-new-privs turbofno serve"
' "$tree" $variables "TURBOFNO_PORT=$port" &
server=$!
for _ in $(seq 120); do
    kill -0 "$server" 2> /dev/null || break
    sleep 1
    if python3 "$root/deploy/smoke.py" "http://127.0.0.1:$port" 2> /dev/null; then
        kill -TERM "$server"
        break
    fi
done
status=0
wait "$server" || status=$?
echo "exit status: $status"
