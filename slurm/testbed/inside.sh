# What cluster.sh calls inside the cluster's namespaces: bash inside.sh FOLDER init|node|on|start|crash|slow|fast|ctld|dbd ...
# Process ids in FOLDER/run are those of the cluster's own process namespace, but for holder.pid.
set -eEuo pipefail
T=$1
RUN=$T/run
NODES=(node1 node2 node3 node4)
shift

# One line for the user, and for `up`. The first process of the cluster takes everything with it when it ends.
fail() {
  echo "$*" >> "$RUN/failed"
  echo "error: testbed: $*" >&2
  exit 2
}

# The machine's process id of this shell, as long as /proc is that of the namespace outside.
own_id() { read -r REPLY _ < /proc/self/stat; }

# --- the cluster ---

init() {
  local accounting=$1 programs=$2
  own_id
  echo "$REPLY" > "$RUN/holder.pid"
  trap 'echo "line $LINENO of inside.sh: $BASH_COMMAND failed" >> "$RUN/failed"' ERR
  mount_all "$programs"
  hostname head
  ip link set lo up
  ip link add br0 type bridge || fail "bridge: this kernel has none; modprobe bridge, or take another kernel"
  ip address add 10.77.0.1/24 dev br0
  ip link set br0 up
  # Under /etc, since munged wants nobody else to be able to write to any folder above its files.
  nice -n -10 munged --force --key-file=/etc/testbed/run/munge.key --socket=/etc/testbed/run/munge.socket \
    --seed-file=/etc/testbed/run/munge.seed --pid-file=/etc/testbed/run/munged.pid --log-file=/etc/testbed/log/munged.log
  [ "$accounting" = off ] || { start_database; }
  ctld start
  local node starting=()
  for node in "${NODES[@]}"; do
    start "$node" &
    starting+=($!)
  done
  wait "${starting[@]}"
  until [ "$(sinfo -h -N -t idle | wc -l)" = ${#NODES[@]} ]; do
    [ ! -e "$RUN/failed" ] || exit 2
    sleep .1
  done
  touch "$RUN/ready"
  # Waits; as the first process it also reaps what others leave behind.
  if [ "${3:-}" = --attached ]; then cat <&3 > /dev/null; else sleep infinity & wait; fi
}

# The machine's files with this folder, its own configuration and the programs that it lacks.
mount_all() {
  mount -t proc proc /proc
  mount --make-rshared / # what is mounted on the login node later, all nodes see, as they would a shared file system
  cd "${1:-/}"
  [ -z "$1" ] || mount -t overlay -o "lowerdir=$T/usr:usr:/usr" overlay /usr || fail "$OVERLAY"
  cd "$T"
  mount -t overlay -o lowerdir=layer:/etc overlay /etc || fail "$OVERLAY"
  mount --bind "$T" /etc/testbed
}
OVERLAY="overlay: this kernel cannot lay one folder over another; modprobe overlay, or take another kernel or file system"

start_database() {
  mkdir "$T/db"
  # Empty, and anybody here is root: no tables of users are needed. The Slurm of this cluster alone can reach the socket.
  mariadbd --no-defaults --user=root --datadir="$T/db" --socket="$MYSQL_UNIX_PORT" --pid-file="$RUN/mariadbd.pid" \
    --skip-networking --skip-grant-tables --innodb-log-file-size=8M --innodb-buffer-pool-size=32M \
    --innodb-flush-log-at-trx-commit=0 --innodb-lock-wait-timeout=900 > "$T/log/mariadbd.log" 2>&1 &
  until [ -S "$MYSQL_UNIX_PORT" ]; do
    kill -0 $! || fail "mariadbd: it ended"
    sleep .1
  done
  dbd start
  sacctmgr --immediate add cluster testbed
  sacctmgr --immediate add account default
  sacctmgr --immediate add user root account=default
}
export MYSQL_UNIX_PORT=/etc/testbed/run/mariadb.socket

# --- its nodes ---

# Makes a node: namespaces with a link to the others, and Slurm's daemon in them.
start() {
  local node=$1 i=${1#node} pid
  [ ! -e "$RUN/$node.pid" ] || fail "$node: is up"
  setsid unshare --net --uts --ipc --pid --mount --fork --propagation slave \
    bash "$0" "$T" node "$node" < /dev/null >> "$T/log/$node.log" 2>&1 &
  until [ -s "$RUN/$node.pid" ]; do
    kill -0 $! || fail "$node: its namespaces could not be made"
    sleep .01
  done
  pid=$(cat "$RUN/$node.pid")
  ip link add "v$i" type veth peer name eth0 netns "$pid" ||
    fail "veth: this kernel has none; modprobe veth, or take another kernel"
  ip link set "v$i" master br0 up
  (on "$node" ip link set lo up)
  (on "$node" ip address add "10.77.0.1$i/24" dev eth0)
  (on "$node" ip link set eth0 up)
  (on "$node" ip route add default via 10.77.0.1)
  [ ! -e "$RUN/$node.rate" ] || shape "$node" "$(cat "$RUN/$node.rate")"
  (on "$node" nice -n -10 slurmd -N "$node")
}

# The first process of a node.
node() {
  own_id
  mount -t proc proc /proc
  mount -t tmpfs shm /dev/shm
  hostname "$1"
  echo "$REPLY" > "$RUN/$1.new" && mv "$RUN/$1.new" "$RUN/$1.pid"
  sleep infinity & wait
}

# Ends this shell.
# Becomes the command, as the last thing that this shell does.
on() {
  local pid
  pid=$(cat "$RUN/$1.pid" 2> /dev/null) || fail "$1: is down; start it first"
  trap '' INT QUIT # as in cluster.sh
  exec nsenter --target "$pid" --mount --uts --ipc --net --pid \
    env --default-signal=INT,QUIT bash -c 'cd "$0" 2> /dev/null || cd /; exec "$@"' "$PWD" "${@:2}"
}

# A power failure: nothing more is heard of the node, not even that its connections are closed.
crash() {
  local pid
  pid=$(cat "$RUN/$1.pid" 2> /dev/null) || fail "$1: is down already"
  ip link delete "v${1#node}"
  kill -9 "$pid"
  rm "$RUN/$1.pid"
  while [ -e "/proc/$pid" ]; do sleep .02; done
}

# --- its links ---

slow() {
  local node nodes=("${@:2}")
  for node in "${nodes[@]:-${NODES[@]}}"; do
    echo "$1" > "$RUN/$node.rate"
    [ ! -e "$RUN/$node.pid" ] || shape "$node" "$1"
  done
}

fast() {
  local node nodes=("$@")
  for node in "${nodes[@]:-${NODES[@]}}"; do
    [ -e "$RUN/$node.rate" ] || continue
    rm "$RUN/$node.rate"
    [ ! -e "$RUN/$node.pid" ] || { (on "$node" tc qdisc delete dev eth0 root) && tc qdisc delete dev "v${node#node}" root; }
  done
}

# What leaves the node, and what is sent to it.
shape() {
  local limit=(root tbf rate "$2" burst 64kb latency 50ms)
  { (on "$1" tc qdisc replace dev eth0 "${limit[@]}") && tc qdisc replace dev "v${1#node}" "${limit[@]}"; } ||
    fail "tc: this kernel cannot limit rates; modprobe sch_tbf, or take another kernel"
}

# --- its daemons ---

ctld() { daemon slurmctld 6817 "$1"; }
dbd() { daemon slurmdbd 6819 "$1"; }

# Done when it is: the daemon answers, or is gone.
daemon() {
  local pid signal=TERM
  pid=$(cat "$RUN/$1.pid" 2> /dev/null) && [ -e "/proc/$pid" ] || pid=
  if [ "$3" = start ]; then
    [ -z "$pid" ] || fail "$1: is up"
    nice -n -10 "$1"
    for ((i = 0; i < 600; i++)); do
      (exec 4<> "/dev/tcp/10.77.0.1/$2") 2> /dev/null && return
      sleep .05
    done
    fail "$1: does not answer within 30 s"
  fi
  [ -n "$pid" ] || fail "$1: is down already"
  [ "$3" = stop ] || signal=KILL
  kill -s "$signal" "$pid"
  while [ -e "/proc/$pid" ]; do sleep .02; done
  rm -f "$RUN/$1.pid"
}

case $1 in
  init | node | on | start | crash | slow | fast | ctld | dbd) "$@" ;;
  *) fail "inside.sh: '$1' is no command; call cluster.sh" ;;
esac
