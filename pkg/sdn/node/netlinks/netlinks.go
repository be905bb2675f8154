// Package netlinks opens netlink sockets in the network namespaces of the host and of pods. It is a package of its own since packages veth and macvlan both need
// it, and neither needs the other.
package netlinks

import (
	"context"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// Open opens a netlink socket in the network namespace of the calling thread, unless the context has ended. The caller closes it.
func Open(ctx context.Context) (netlinksafe.Handle, error) {
	if err := ctx.Err(); err != nil {
		return netlinksafe.Handle{}, err
	}
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return netlinksafe.Handle{}, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// InPod calls f in the pod's network namespace, with a socket that it closes.
func InPod(ctx context.Context, pod ns.NetNS, f func(netlinksafe.Handle) error) error {
	return pod.Do(func(ns.NetNS) error {
		h, err := Open(ctx)
		if err != nil {
			return err
		}
		defer h.Close()
		return f(h)
	})
}
