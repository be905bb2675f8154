#!/usr/bin/env bash
# The demo: a cluster of two nodes on this machine, two pods that ping each other, a service of both that is found by its name and balanced by the switch, and commands to
# explore.
set -euo pipefail
cd "$(dirname "$0")/.."

lab=bin/ovsdn-lab
title() { printf '\n\033[1m%s\033[0m\n' "$*"; }

[ "$(id -u)" = 0 ] || { echo "The lab creates network namespaces: run this as root (sudo make demo)." >&2; exit 1; }

title "A cluster of two nodes"
"$lab" up

title "Two pods on two nodes"
"$lab" kubectl -- apply -f "$PWD/docs/examples/two-pods.yaml"
"$lab" kubectl -- wait --for=condition=Ready pod/ping-1 pod/ping-2 --timeout=120s
"$lab" kubectl -- get hostsubnets
"$lab" kubectl -- get pods -o wide

ip_of() { "$lab" kubectl -- get pod "$1" -o 'jsonpath={.status.podIP}'; }
one=$(ip_of ping-1) two=$(ip_of ping-2)
# The first packet to a new neighbour may be lost while the tunnel resolves it (userspace datapath).
"$lab" kubectl -- exec ping-1 -- ping -c 1 -W 2 "$two" > /dev/null || true

title "ping-1 ($one, node1) pings ping-2 ($two, node2) through VXLAN"
"$lab" kubectl -- exec ping-1 -- ping -c 3 "$two"
title "and back"
"$lab" kubectl -- exec ping-2 -- ping -c 3 "$one"

title "ping-1 resolves the service of both pods"
"$lab" kubectl -- rollout status deployment/coredns --namespace=kube-system --timeout=120s > /dev/null
"$lab" kubectl -- exec ping-1 -- nslookup -type=a ping.default.svc.cluster.local
title "and gets 20 pages by its name, from the pods of both nodes"
"$lab" kubectl -- exec ping-1 -- sh -c 'for n in $(seq 20); do wget -q -O- http://ping/hostname && echo; done' | sort | uniq -c

title "The service on node1: its flow, and the group of its endpoints"
service=$("$lab" kubectl -- get service ping -o 'jsonpath={.spec.clusterIP}')
flow=$("$lab" exec node1 -- ovs-ofctl -O OpenFlow15 --names --no-stats dump-flows br0 | grep "nw_dst=$service,tp_dst=80 actions=group:")
echo "$flow"
"$lab" exec node1 -- ovs-ofctl -O OpenFlow15 dump-groups br0 "${flow##*group:}"

title "Flows on node1 for packets to ping-2: ovs-ofctl --names dump-flows br0"
"$lab" exec node1 -- ovs-ofctl -O OpenFlow13 --names --no-stats dump-flows br0 | grep -E 'table=("?remote"?|"?route"?|"?pod-ingress"?),'

cat <<EOF

Explore:
  $lab kubectl -- get pods -A -o wide
  $lab kubectl -- exec -it ping-1 -- sh
  $lab exec node1 -- ovs-ofctl --names dump-flows br0
  $lab exec node1 -- ovs-appctl ofproto/trace br0 in_port=tun0,ip,nw_dst=$one
  $lab exec outside -- ip address
  $lab status
Remove the cluster:
  sudo make down
EOF
