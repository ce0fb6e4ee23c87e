# Sizes that are enforced, by the agent beside the server. Sourced by guest.sh.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

AGENT=$NFS_SERVER:9820
MIB=$((1 << 20))

# One authority for the agent and its clients, and another one that neither side trusts.
certificates() {
  mkdir -p /run/agent
  local name
  for name in ca stranger-ca; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "/run/agent/$name.key" -out "/run/agent/$name.pem" \
      -days 1 -subj "/CN=$name"
  done
  certificate ca agent "IP:$NFS_SERVER" serverAuth
  certificate ca driver DNS:driver clientAuth
  certificate stranger-ca stranger DNS:driver clientAuth
}
# certificate AUTHORITY NAME ALTERNATIVE-NAME USAGE
certificate() {
  local at=/run/agent
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$at/$2.key" -out "$at/$2.csr" -subj "/CN=$2"
  openssl x509 -req -in "$at/$2.csr" -CA "$at/$1.pem" -CAkey "$at/$1.key" -CAcreateserial -days 1 -out "$at/$2.pem" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=%s\n' "$3" "$4")
}

agent_up() {
  RUST_LOG=info nsenter --net=/run/netns/server "$WHARF" nfs-server --export /srv/xfs --export /srv/ext4 --listen "$AGENT" \
    --client-ca /run/agent/ca.pem --cert /run/agent/agent.pem --key /run/agent/agent.key </dev/null >>/run/agent.log 2>&1 &
  agent_pid=$!
  eventually 30 agent_answers
}
agent_answers() { agent_call ca driver /v1/exports; }
agent_down() { kill -TERM "$agent_pid" && wait "$agent_pid"; }
# agent_call AUTHORITY CERTIFICATE PATH ARGUMENT...
agent_call() {
  local ca=$1 certificate=$2 path=$3
  shift 3
  in_ns node-a curl --silent --show-error --fail --max-time 10 --cacert "/run/agent/$ca.pem" --cert "/run/agent/$certificate.pem" \
    --key "/run/agent/$certificate.key" "$@" "https://$AGENT$path"
}

quota() {
  plant_canaries
  check "certificates" certificates
  check "agent" agent_up
  check "agent: an unknown client is refused" fails agent_call ca stranger /v1/exports
  check "agent: its own certificate does not make a client" fails agent_call ca agent /v1/exports
  check "agent: a client without certificate is refused" fails in_ns node-a curl --silent --cacert /run/agent/ca.pem "https://$AGENT/v1/exports"
  check "agent: plain HTTP is refused" fails in_ns node-a curl --silent --fail "http://$AGENT/v1/exports"
  check "agent: both exports enforce quotas" same "$(agent_call ca driver /v1/exports | grep -o '"quota":"enforced"' | wc -l)" 2
  check "agent: an unknown share is refused" fails agent_call ca driver /v1/call --data '{"share":"none","operation":"capacity"}'
  check "driver on node-a" driver_up node-a --server-agent "$NFS_SERVER=https://$AGENT" --agent-ca /run/agent/ca.pem \
    --agent-cert /run/agent/driver.pem --agent-key /run/agent/driver.key
  SHARE=/xfs quota_life
  SHARE=/ext4 quota_life
  check "driver stops" driver_down node-a
  check "agent stops" agent_down
  check "no worker is left" eventually 10 no_workers
  check "canaries live" canaries_live
}

# limited_create NAME SIZE ARGUMENT...
limited_create() {
  local name=$1 size=$2 arguments
  shift 2
  mapfile -t arguments < <(class)
  retry csi node-a --output json volume create "$name" --size "$size" "${arguments[@]}" --parameter mode=0777 "$@" \
    >"/run/volume-$name.json" || { cat "/run/volume-$name.json" && : >"/run/volume-$name.json" && return 1; }
}
capacity_of() { json "/run/volume-$1.json" capacity_bytes; }
# write FILE MEBIBYTES: as a user, since ext4 does not limit root.
write() {
  setpriv --reuid 1234 --regid 1234 --clear-groups dd if=/dev/zero of="$1" bs=1M count="$2" conv=fsync status=none
}
mounted_size() { df --output=size --block-size=1 "$1" | tail -n 1 | tr -d ' '; }
# The limits of projects of the agent on a file system, in KiB. -f: also on ext4.
limits() { xfs_quota -x -f -c 'report -p -n -N -b' "/srv$SHARE" | awk '{ sub("#", "", $1) } $1 >= 1500000000 && $4 > 0 { print $4 }'; }
free_capacity() { csi node-a --output json capacity --parameter "server=$NFS_SERVER" --parameter "share=$SHARE" | grep -oE '[0-9]+' | head -n 1; }

quota_life() {
  local on="$SHARE:" v=quota-${SHARE#/} target before uneven=65001
  # xfs rounds a limit up to its blocks.
  [ "$SHARE" != /xfs ] || uneven=65004
  target=$(target node-a "$v")
  check "$on create with quota: required" limited_create "$v" 64MiB --parameter quota=required
  check "$on its capacity is answered" same "$(capacity_of "$v")" $((64 * MIB))
  check "$on the server has the limit" same "$(limits)" $((64 * 1024))
  check "$on a second volume, whose size is no multiple of 4096" limited_create "$v-2" $((65001 * 1024))
  before=$(free_capacity)
  check "$on publish" publish node-a "$v"
  check "$on publish the second" publish node-a "$v-2"
  check "$on the mount shows the size" same "$(mounted_size "$target")" $((64 * MIB))
  check "$on stats show the size" grep -q $((64 * MIB)) <(csi node-a --output json node stats "$(handle "$v")" --path "$target")
  check "$on write within the size" write "$target/a" 40
  check "$on write beyond the size: refused" fails write "$target/b" 40
  check "$on the other volume is not affected" write "$(target node-a "$v-2")/a" 40
  rm -f "$target/b"
  # What is written was promised before.
  check "$on free capacity counts promises, not writes" within_mib "$before" "$(free_capacity)" 16
  sha256sum <"$target/a" >/run/sum

  check "$on expand" csi node-a volume expand "$(handle "$v")" --size 128MiB
  check "$on the mount shows the new size" eventually 10 shows "$target" $((128 * MIB))
  check "$on write within the new size" write "$target/b" 40
  check "$on write beyond the new size: refused" fails write "$target/c" 60
  rm -f "$target/c"
  check "$on snapshot" snapshot node-a "$v-snap" "$v"
  check "$on restore" limited_create "$v-restored" 128MiB --from-snapshot "$(snapshot_handle "$v-snap")" --parameter quota=required
  check "$on clone" limited_create "$v-clone" 160MiB --from-volume "$(handle "$v")" --parameter quota=required
  check "$on data of the clone" same "$(sha256sum <"$(directory "$v-clone")/a")" "$(cat /run/sum)"
  check "$on every volume has its limit" same "$(limits | sort -n | xargs)" "$uneven 131072 131072 163840"
  check "$on publish the clone" publish node-a "$v-clone"
  check "$on write within the clone's size" write "$(target node-a "$v-clone")/d" 40
  check "$on write beyond the clone's size: refused" fails write "$(target node-a "$v-clone")/e" 60

  check "$on agent stops" agent_down
  check "$on without agent, quota: required fails" fails csi node-a volume create "$v-none" --size 64MiB --access-mode rwx \
    --parameter "server=$NFS_SERVER" --parameter "share=$SHARE" --parameter quota=required
  check "$on without agent, a limited volume does not expand" fails csi node-a volume expand "$(handle "$v")" --size 256MiB
  check "$on without agent, other volumes are created" limited_create "$v-free" 64MiB
  check "$on and are not limited" same "$(capacity_of "$v-free")" 0
  check "$on agent again" agent_up
  check "$on expand again" csi node-a volume expand "$(handle "$v")" --size 256MiB

  local volume
  for volume in "$v" "$v-2" "$v-clone"; do check "$on unpublish $volume" unpublish node-a "$volume"; done
  check "$on delete the snapshot" csi node-a snapshot delete "$(snapshot_handle "$v-snap")"
  for volume in "$v" "$v-2" "$v-restored" "$v-clone" "$v-free"; do check "$on delete $volume" delete node-a "$volume"; done
  csi node-a volume delete "$NFS_SERVER#${SHARE#/}#$v-none##" >/dev/null 2>&1 || true
  check "$on the share is clean" eventually 30 share_is_clean "$SHARE"
  check "$on no limit is left" eventually 150 no_limits
}
# Shows what keeps the space of deleted files in use: usage, and open files of processes and of the server.
no_limits() {
  [ -n "$(limits)" ] || return 0
  head -n 3 /proc/fs/nfsd/clients/*/states
  find /proc/[0-9]*/fd -lname "* (deleted)" -printf '%p %l\n' 2>/dev/null | head -n 3
  find "/srv$SHARE" -printf '%i %p\n' | head -n 20
  xfs_quota -x -f -c 'report -p -n -N -b -i' "/srv$SHARE"
  return 1
}
shows() { [ "$(mounted_size "$1")" = "$2" ]; }
# within_mib A B MEBIBYTES: the two numbers differ by less.
within_mib() {
  local difference=$(($1 - $2))
  [ "${difference#-}" -lt $(($3 * MIB)) ] || { echo "$1 and $2 differ by $difference" && false; }
}
