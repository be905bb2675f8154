#!/usr/bin/env bash
# Installs with apt the missing packages to build and test ovsdn and to run its lab, and checks the version of Go; with the argument kernel, also
# the packages of `make test-kernel`, with browser that of `make test-browser`. It changes nothing if no package is missing, and starts, stops and
# configures no service itself.
set -euo pipefail

# The PATH of sudo and of users other than root often lacks these.
PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for=${1:-}

# Packages of Debian or Ubuntu, a probe for each (a package that replaces it may satisfy the probe), and the purpose. kubelet and containerd run
# mount and umount, kube-proxy runs iptables or nft, and no other programs.
needs() {
  cat <<'END'
openvswitch-switch | ovs-vsctl ovs-ofctl ovs-appctl ovsdb-server ovsdb-tool ovs-vswitchd | the switch of every node
iptables           | iptables iptables-save iptables-restore | the agent's firewall and kube-proxy's
nftables           | nft                                     | kube-proxy's rules, and looking at them
iproute2           | ip tc ss                                | the lab's links and namespaces
ethtool            | ethtool                                 | looking at the offloads of a pod's interface
iputils-ping       | ping                                    | looking at what is reachable
conntrack          | conntrack                               | looking at the host's connections
tcpdump            | tcpdump                                 | looking at packets
iperf3             | iperf3                                  | throughput, also inside the pod image
busybox-static     | busybox                                 | the shell and tools of the pod image
mount              | mount umount                            | a node's file systems
util-linux         | unshare nsenter setpriv                 | a node's namespaces
kmod               | modprobe                                | openvswitch in the kernel, where it is a module
git                | git                                     | the version in programs, and the commit that an upgrade begins at
procps             | ps pkill sysctl                         | looking at processes and settings
gcc                | gcc                                     | runc, and the race detector
libc6-dev          | gcc:stdio.h                             | runc, and the race detector
pkg-config         | pkg-config                              | building runc
libseccomp-dev     | pkg-config:libseccomp                   | building runc
END
  [ "$for" != kernel ] || echo "qemu-system-x86 | qemu-system-x86_64 | the machine with the kernel datapath"
  [ "$for" != browser ] || echo "chromium | chromium | tests of the dashboard"
}

info() { echo "bootstrap: $*"; }
fail() { echo "bootstrap: $*" >&2; exit 1; }

# found PROBE: a program, a C header (gcc:HEADER) or a C library (pkg-config:NAME).
found() {
  case $1 in
    gcc:*) echo "#include <${1#gcc:}>" | gcc -E -o /dev/null - ;;
    pkg-config:*) pkg-config --exists "${1#pkg-config:}" ;;
    *) command -v "$1" ;;
  esac >/dev/null 2>&1
}

# in_words: the probes in missing's lines, as text for messages.
in_words() { sed 's/gcc:/the C header /; s/pkg-config:/the C library (with headers) /; s/^ *//'; }

# missing: a line "PACKAGE | PROBES | PURPOSE" for each package that has a probe not found, with those probes only.
missing() {
  local package probes purpose probe absent
  while IFS='|' read -r package probes purpose; do
    absent=
    for probe in $probes; do
      found "$probe" || absent+="$probe "
    done
    [ -z "$absent" ] || echo "${package// /} | $absent|$purpose"
  done < <(needs)
}

# The build needs the highest of the versions that its modules ask for. A go command that may fetch a newer one of
# itself (GOTOOLCHAIN) does so here, in the module that needs it.
check_go() {
  local file want have
  command -v go >/dev/null || fail "Go is missing: install it from https://go.dev/dl into /usr/local/go, or put it on the PATH"
  read -r file want < <(cd "$root" && awk '$1 == "go" { print FILENAME, $2; nextfile }' \
    go.mod test/lab/components/*/go.mod scripts/*/go.mod | sort -k2,2V | tail -n 1)
  have=$(cd "$root/$(dirname "$file")" && go env GOVERSION) || fail "Go $want is needed ($file), and the go command can't provide it"
  have=${have#devel } have=${have#go} have=${have%%[ -]*} # "go1.26.8 X:…", "devel go1.27-0a1b2c …"
  printf '%s\n' "$want" "$have" | sort -V -C || fail "Go $have is too old: $file needs $want or newer, see https://go.dev/dl"
}

# apt_get ARGS: without questions and without a terminal. It waits for another apt that holds the lock.
apt_get() {
  DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get -qq -y \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@" </dev/null
}

install_missing() {
  local lacking=$1 packages log
  command -v apt-get >/dev/null || fail "this system has no apt-get. Install these, then try again (program | for):
$(cut -d '|' -f 2- <<<"$lacking" | in_words)"
  packages=$(cut -d '|' -f 1 <<<"$lacking" | tr -d '\n')
  [ "$(id -u)" = 0 ] || fail "these packages are missing: $packages
run this as root: sudo ${BASH_SOURCE[0]}"
  info "installing $packages"
  log=$(mktemp)
  # shellcheck disable=SC2064 # the name is known now
  trap "rm -f '$log'" EXIT
  # Only the probes decide: an unreachable mirror of another repository, or a service that a policy does not start, is not a failure.
  apt_get update >>"$log" 2>&1 || true
  # shellcheck disable=SC2086 # one word a package
  apt_get install --no-install-recommends $packages >>"$log" 2>&1 || true
  lacking=$(missing)
  [ -z "$lacking" ] || fail "still missing after apt-get install (package | program | for):
$(in_words <<<"$lacking")
output of apt-get:
$(tail -n 25 "$log")"
}

# Downloads the Debian packages of images, so that images can be built offline. The lab accepts other versions, and reports them.
fetch_packages() {
  local sum
  for sum in $(awk '!/^#/ { print $3 }' "$root"/images/*/debian-12-"$(dpkg --print-architecture)".lock 2>/dev/null); do
    [ -e "/var/cache/ovsdn-lab/packages/$sum.deb" ] && continue
    (cd "$root" && go run ./images/build fetch) || info "the pinned packages of the images are not available here"
    return 0
  done
}

check_go
lacking=$(missing)
[ -z "$lacking" ] || install_missing "$lacking"
# test/vm asks apt for the current kernel, and unpacks it without installing it.
[ "$for" != kernel ] || apt-cache show linux-image-amd64 >/dev/null 2>&1 || apt_get update >/dev/null
[ "$(id -u)" != 0 ] || fetch_packages
