#!/usr/bin/env bash
# A Slurm cluster of 4 nodes with 2 fake GPUs each on this machine, for tests; needs root. See README.md beside it.
#   cluster.sh up [--attached]              start it and list the nodes; attached: until the standard input ends
#   cluster.sh exec CMD...                  run on the login node, in the current folder
#   cluster.sh on nodeN CMD...              run on a node
#   cluster.sh crash nodeN                  power failure of a node
#   cluster.sh start nodeN                  start it again
#   cluster.sh slow RATE [nodeN...]         slow the links of nodes (default: all) both ways, to 1mbit ... 10gbit
#   cluster.sh fast [nodeN...]              as they were
#   cluster.sh ctld stop|kill|start         the controller: an orderly stop, a crash, a start
#   cluster.sh dbd stop|kill|start          the same of the accounting daemon
#   cluster.sh down [--keep-logs]           stop it and remove all of it
# TESTBED=folder of its state (default: slurm-testbed in the temporary folder); ACCOUNTING=on starts a database too.
set -euo pipefail
HERE=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
ROOT=$(realpath "$HERE/../..")
T=$(realpath -m "${TESTBED:-${TMPDIR:-/tmp}/slurm-testbed}")
export PATH="$PATH:/usr/sbin:/sbin"

fail() {
  echo "error: testbed: $*" >&2
  exit 2
}

# The process id of the cluster's first process, if it lives: no other that got this id since has the folder as an argument.
holder() {
  local pid words
  pid=$(cat "$T/run/holder.pid" 2> /dev/null) || return 1
  mapfile -d '' -t words 2> /dev/null < "/proc/$pid/cmdline" && [ "${words[2]:-}" = "$T" ] && echo "$pid"
}

# Replaces this shell by CMD in the namespaces of the cluster. Ctrl-C is for CMD: nsenter waits for what it does then, and it
# has the signal's default even where a shell that runs in the background has it ignored.
enter() {
  local pid
  pid=$(holder) || fail "TESTBED: no cluster runs in '$T'; start it: $0 up"
  trap '' INT QUIT
  exec nsenter --target "$pid" --mount --uts --ipc --net --pid \
    env --unset=SLURM_CONF --default-signal=INT,QUIT bash -c 'cd "$0" 2> /dev/null || cd /; exec "$@"' "$PWD" "$@"
}

inside() { (enter bash "$HERE/inside.sh" "$T" "$@"); }

known() {
  local node
  for node in "$@"; do
    [[ $node =~ ^node[1-4]$ ]] || fail "node: '$node' is none of node1 to node4"
  done
}

# Below, Slurm's own messages, which take the same links, come too late behind others; far above, tc rounds queues to nothing.
check_rate() {
  local most=10
  if [[ ${1:-} =~ ^([0-9]{1,5})(\.[0-9]{1,6})?(m|g)bit$ ]]; then
    [ "${BASH_REMATCH[3]}" = g ] || most=10000
    ((10#${BASH_REMATCH[1]} >= 1)) && ((10#${BASH_REMATCH[1]} < most)) && return
    [ "$((10#${BASH_REMATCH[1]}))${BASH_REMATCH[2]}" != "$most" ] || return 0
  fi
  fail "rate: '${1:-}' is not allowed; give 1mbit to 10gbit, as in 100mbit"
}

check_machine() {
  local program
  [ "$(id -u)" = 0 ] || fail "user: needs root for namespaces and mounts; call it with sudo"
  for program in unshare nsenter mount setsid; do
    command -v "$program" > /dev/null || fail "$program: not on PATH; install the packages util-linux and mount"
  done
  unshare --mount --uts --ipc --net --pid --fork true 2> /dev/null ||
    fail "unshare: this root may not make namespaces; in a container, start that with --privileged"
  [ -z "$(holder)" ] || fail "TESTBED: a cluster is already up in '$T'; '$0 down' first, or choose another folder"
  [[ $T =~ ^[A-Za-z0-9._/+-]+$ ]] || fail "TESTBED: '$T' has characters that mount options cannot hold; choose another"
  [ ! -e "$T" ] || [ -e "$T/testbed" ] || rmdir "$T" 2> /dev/null ||
    fail "TESTBED: '$T' is not empty; choose another folder"
  [[ ${ACCOUNTING:=off} =~ ^(on|off)$ ]] || fail "ACCOUNTING: '$ACCOUNTING' is not allowed; on or off"
}

# The folder with the programs that this machine lacks, fetched once; nothing if it has all.
programs() {
  local needed=(munged slurmctld slurmd sinfo ip tc) program python=$ROOT/.venv/bin/python options=()
  [ "$ACCOUNTING" = off ] || {
    needed+=(slurmdbd sacct mariadbd)
    options=(--accounting)
  }
  [ -x "$python" ] || python=python3
  for program in "${needed[@]}"; do
    command -v "$program" > /dev/null && continue
    (cd "$ROOT" && "${PYTHON:-$python}" -m benchmarks.rig.debian "${options[@]}")
    return
  done
}

write_config() {
  local file
  rm -rf "$T"
  mkdir -p "$T"/{conf,dev,log,run,state,layer/testbed,usr/sbin} "$T"/spool/node{1,2,3,4}
  touch "$T/testbed"
  echo "# ACCOUNTING=off" > "$T/conf/accounting.conf"
  cp "$HERE"/{slurm,gres}.conf "$T/conf"
  if [ "$ACCOUNTING" = on ]; then
    cp "$HERE/accounting.conf" "$T/conf"
    install -m 600 "$HERE/slurmdbd.conf" "$T/conf"
  fi
  # Packages that are only unpacked lack the names that Debian's alternatives give.
  for file in "$1"/usr/sbin/*-wlm; do
    [ ! -e "$file" ] || ln -s "${file##*/}" "$T/usr/sbin/$(basename "$file" -wlm)"
  done
  # Over the machine's /etc, inside only. No DNS: its time-outs cost 5 s a launch.
  cp "$HERE/hosts" "$T/layer"
  { grep -v '^hosts:' /etc/nsswitch.conf || true; echo 'hosts: files'; } > "$T/layer/nsswitch.conf" 2> /dev/null
  ln -s testbed/conf "$T/layer/slurm"
  (umask 077 && head -c 128 /dev/urandom > "$T/run/munge.key")
  mknod "$T/dev/nvidia0" c 1 3 && mknod "$T/dev/nvidia1" c 1 3
}

up() {
  local folder said
  check_machine
  folder=$(programs) || exit 2
  write_config "$folder"
  trap 'down --keep-logs; exit 130' INT TERM
  exec 3< /dev/null
  [ "${1:-}" != --attached ] || exec 3<&0
  setsid unshare --mount --uts --ipc --net --pid --fork --propagation private \
    bash "$HERE/inside.sh" "$T" init "$ACCOUNTING" "$folder" "${1:-}" < /dev/null > "$T/log/init.log" 2>&1 &
  # Its first process says when it is ready; it ends if something fails.
  for ((i = 0; i < 1200; i++)); do
    [ ! -e "$T/run/ready" ] || break
    kill -0 $! 2> /dev/null || break
    sleep .05
  done
  if [ ! -e "$T/run/ready" ]; then
    said=$(cat "$T/run/failed" 2> /dev/null || echo "it was not ready within a minute, or ended")
    down --keep-logs
    fail "$said; what was said is in $T/log"
  fi
  (enter sinfo -N -o '%N %t %c %m %G')
}

down() {
  local pid
  [ -e "$T/testbed" ] || { [ ! -e "$T" ] || fail "TESTBED: '$T' is not a testbed's folder"; return 0; }
  # All processes of the cluster end with its first one, and all mounts and networks with them.
  if pid=$(holder); then
    kill -9 "$pid"
    while [ -e "/proc/$pid" ]; do sleep .02; done
  fi
  if [ "${1:-}" = --keep-logs ]; then
    find "$T" -mindepth 1 -maxdepth 1 ! -name log ! -name testbed -exec rm -rf {} +
  else
    rm -rf "$T"
  fi
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
  up | down) "$command" "$@" ;;
  exec) enter "$@" ;;
  on) known "${1:-}" && enter bash "$HERE/inside.sh" "$T" on "$@" ;;
  crash | start) known "${1:-}" && inside "$command" "$1" ;;
  slow)
    check_rate "${1:-}"
    known "${@:2}" && inside slow "$@"
    ;;
  fast) known "$@" && inside fast "$@" ;;
  ctld | dbd)
    [[ ${1:-} =~ ^(stop|kill|start)$ ]] || fail "$command: '${1:-}' is none of stop, kill, start"
    inside "$command" "$1"
    ;;
  *)
    sed -n '2,/^set/{/^set/d; s/^# \?//p}' "$0" >&2
    exit 2
    ;;
esac
