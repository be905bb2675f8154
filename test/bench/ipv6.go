package main

import (
	"os"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
)

// ipv6Figure: IPv6 in a pod's namespace, which is how kernels make them, makes a CNI that is not careful wait for the end of
// duplicate address detection: a second or two (RFC 4862, section 5.4).
func ipv6Figure() figure {
	return figure{
		name:  "ipv6",
		about: "ADD in a network namespace with IPv6 on, beside one with IPv6 off",
		run:   runIPv6,
	}
}

func runIPv6(b *B) {
	node := b.newNode()
	pods := b.sandboxes(2)
	var times [2][]time.Duration
	for i, off := range []string{"0", "1"} {
		b.must(pods[i].netns.Do(func(ns.NetNS) error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte(off), 0o644)
		}))
	}
	for n := range b.samples {
		b.step("pod %d of %d", n+1, b.samples)
		for _, i := range turns([]int{0, 1}, n) {
			took, err := node.runtime.add(b.Context(), pods[i])
			b.must(err)
			times[i] = append(times[i], took)
			_, err = node.runtime.del(b.Context(), pods[i])
			b.must(err)
			b.settle(node.ovs)
		}
	}
	const detection = 1000 // the least that it takes (RFC 4862, RetransTimer of RFC 4861)
	b.record("ADD, IPv6 on", "ms", seriesOf("ours", milliseconds(times[0])), seriesOf("IPv6 off", milliseconds(times[1]), within(detection, "ms")))
}
