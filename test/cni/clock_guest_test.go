//go:build guest

package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// setClock sets the wall clock, in test/vm's guest only, which has its control directory over 9p. statfs(2) would report the host's file system.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(mounts, []byte(" /run/vm 9p ")) {
		t.Fatal("this is not the guest of test/vm: no 9p file system at /run/vm")
	}
	now := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		t.Fatal(err)
	}
}

// call asks the agent as the plugin does, and returns the pod's address after an ADD.
func (r *rig) call(t *testing.T, command string, p *pod) netip.Addr {
	t.Helper()
	var args []string
	for _, a := range p.runtimeConf().Args {
		args = append(args, a[0]+"="+a[1])
	}
	result, err := cniserver.Call(t.Context(), r.config.Socket, &cniserver.Request{
		Command: command, ContainerID: p.id, Netns: p.path(), IfName: "eth0", Args: strings.Join(args, ";"),
		Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni"}`),
	})
	if err != nil {
		t.Fatalf("%s %s: %v", command, p.name, err)
	}
	if command != cniserver.CommandAdd {
		return netip.Addr{}
	}
	addr, ok := netip.AddrFromSlice(result.IPs[0].Address.IP.To4())
	if !ok {
		t.Fatalf("ADD %s: result %v", p.name, result)
	}
	return addr
}

// The clock is set back by an hour, and forward by two, while the agent runs: ADD, DEL, the sweep, a restart of vswitchd and one of the agent
// work as before, and no address is reused early.
func TestAgentWhileTheClockJumps(t *testing.T) {
	r := newNode(t)
	empty := r.state(t)
	first := newPod(t, "first")
	freed := r.call(t, cniserver.CommandAdd, first)
	jumps := []time.Duration{-time.Hour, 2 * time.Hour}
	for _, jump := range jumps {
		before := time.Now().Round(0)
		setClock(t, jump)
		if moved := time.Now().Round(0).Sub(before); (moved - jump).Abs() > time.Minute {
			t.Fatalf("the clock moved by %v, want %v", moved, jump)
		}
		t.Logf("the clock is at %v", time.Now().Round(0))
		r.call(t, cniserver.CommandDel, first)
		second := newPod(t, fmt.Sprint("second", jump))
		addr := r.call(t, cniserver.CommandAdd, second)
		if addr == freed {
			t.Errorf("the address %s, which was released a moment ago, is allocated again", addr)
		}
		r.call(t, cniserver.CommandAdd, first)
		full := r.state(t)

		r.StopVSwitchd(t)
		r.StartVSwitchd(t)
		r.becomes(t, "vswitchd restarted", full)
		r.stop(t)
		r.start(t)
		r.becomes(t, "the agent restarted", full)

		r.call(t, cniserver.CommandDel, first)
		freed = r.call(t, cniserver.CommandAdd, first)
		// The sweep removes a sandbox that ends without a DEL.
		if err := second.netns.Close(); err != nil {
			t.Fatal(err)
		}
		r.lacks(t, addr)
	}
	r.call(t, cniserver.CommandDel, first)
	r.becomes(t, "all pods were deleted", empty)
}

// becomes waits until the node's state is the wanted one.
func (r *rig) becomes(t *testing.T, when string, want []string) {
	t.Helper()
	r.await(t, when, func() error {
		if got := r.state(t); !slices.Equal(got, want) {
			return fmt.Errorf("state %v, want %v", got, want)
		}
		return nil
	})
}

// lacks waits until the address's file was removed.
func (r *rig) lacks(t *testing.T, addr netip.Addr) {
	t.Helper()
	r.await(t, "a sandbox ended", func() error {
		if slices.Contains(r.state(t), "file "+addr.String()) {
			return errors.New("its address is still held")
		}
		return nil
	})
}

func (r *rig) await(t *testing.T, when string, look func() error) {
	t.Helper()
	deadline, tick := time.After(3*patience), time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %s: %v\n%s", when, err, r.Logs())
		}
	}
}
