package cni

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
)

// raw provokes by a call of the plugin that differs from a right one.
func raw(verb string, change func(c call) call) cell {
	return provoke(func(t *testing.T, r *rig, v string) error {
		_, err := r.run(t, change(r.callFor(verb, v, newPod(t, "raw"))))
		return err
	})
}

// common are the cells that all verbs with a configuration have alike.
func common(verb string, rows map[key]cell) map[key]cell {
	for code, c := range map[uint]cell{
		types.ErrIncompatibleCNIVersion: never("the version has the verb; versions that we don't speak have a test of their own"),
		types.ErrInvalidEnvironmentVariables: raw(verb, func(c call) call {
			if verb == "GC" || verb == "STATUS" {
				return c.with("PATH", "")
			}
			return c.with("CONTAINERID", "../../etc")
		}),
		types.ErrDecodingFailure:      raw(verb, func(c call) call { return c.withStdin(`{"name":`) }),
		types.ErrInvalidNetworkConfig: raw(verb, func(c call) call { return c.withStdin(`{"cniVersion":"1.0.0"}`) }),
		types.ErrTryAgainLater: provoke(func(t *testing.T, r *rig, v string) error {
			away := *r
			away.config.Socket = filepath.Join(r.RunDir, "no-agent")
			c := away.callFor(verb, v, newPod(t, "away"))
			if verb == "CHECK" {
				c.stdin = strings.TrimSuffix(c.stdin, "}") + `,"prevResult":{}}`
			}
			_, err := r.run(t, c)
			return err
		}),
		types.ErrPluginNotAvailable:  never("STATUS alone answers this"),
		types.ErrLimitedConnectivity: never("STATUS alone answers this"),
		pods.ErrAttachmentChanged:    never("CHECK alone answers this"),
		pods.ErrMacvlanRefused:       never("ADD alone answers this"),
	} {
		if _, ok := rows[key{verb, code}]; !ok {
			rows[key{verb, code}] = c
		}
	}
	return rows
}

func addRows() map[key]cell {
	return common("ADD", map[key]cell{
		{"ADD", 0}: provoke(func(t *testing.T, r *rig, v string) error {
			p := newPod(t, "web")
			result, err := r.cni.AddNetworkList(t.Context(), r.list(t, v, nil), p.runtimeConf())
			if err != nil {
				return err
			}
			if result.Version() != v {
				t.Errorf("the result is of version %s", result.Version())
			}
			return r.cni.DelNetworkList(t.Context(), r.list(t, v, nil), p.runtimeConf())
		}),
		{"ADD", types.ErrUnsupportedField}: raw("ADD", func(c call) call {
			return c.withStdin(strings.TrimSuffix(c.stdin, "}") + `,"prevResult":{"ips":[]}}`)
		}),
		{"ADD", types.ErrUnknownContainer}: provoke(func(t *testing.T, r *rig, v string) error {
			_, err := r.cni.AddNetworkList(t.Context(), r.list(t, v, nil), newPod(t, ghost).runtimeConf())
			return err
		}),
		{"ADD", types.ErrIOFailure}: provoke(func(t *testing.T, r *rig, v string) error {
			defer r.disk.fill(t)()
			_, err := r.cni.AddNetworkList(t.Context(), r.list(t, v, nil), newPod(t, "web").runtimeConf())
			r.wantEvent(t, "pod web: "+eventreason.NetworkAttachFailed)
			return err
		}),
		{"ADD", types.ErrInvalidNetNS}: raw("ADD", func(c call) call { return c.with("NETNS", "/run/netns/none") }),
		{"ADD", types.ErrTryAgainLater}: provoke(func(t *testing.T, r *rig, v string) error {
			_, err := r.cni.AddNetworkList(t.Context(), r.list(t, v, nil), newPod(t, unreachable).runtimeConf())
			return err
		}),
		{"ADD", types.ErrInternal}: provoke(func(t *testing.T, r *rig, v string) error {
			rt := newPod(t, "web").runtimeConf()
			rt.IfName = "lo" // exists
			_, err := r.cni.AddNetworkList(t.Context(), r.list(t, v, nil), rt)
			return err
		}),
		{"ADD", pods.ErrMacvlanRefused}: provoke(func(t *testing.T, r *rig, v string) error {
			_, err := r.cni.AddNetworkList(t.Context(), r.list(t, v, nil), newPod(t, unprivileged).runtimeConf())
			r.wantEvent(t, "pod "+unprivileged+": "+eventreason.NetworkAttachFailed+": pod default/"+unprivileged+" can't have the macvlan interface")
			return err
		}),
	})
}

func delRows() map[key]cell {
	return common("DEL", map[key]cell{
		{"DEL", 0}: provoke(func(t *testing.T, r *rig, v string) error {
			p := newPod(t, "web")
			rt := p.runtimeConf()
			if _, err := r.cni.AddNetworkList(t.Context(), r.list(t, v, nil), rt); err != nil {
				t.Error(err)
			}
			if err := p.netns.Close(); err != nil {
				t.Error(err)
			}
			for range 2 { // the second time there is nothing, not even a cached result
				if err := r.cni.DelNetworkList(t.Context(), r.list(t, v, nil), rt); err != nil {
					return err
				}
			}
			// Lies are not listened to.
			c := r.callFor("DEL", v, newPod(t, "never-added"))
			_, err := r.run(t, c.withStdin(strings.TrimSuffix(c.stdin, "}")+`,"prevResult":{"ips":[{"address":"10.128.2.1/24"}]}}`))
			return err
		}),
		{"DEL", types.ErrUnsupportedField}: never("DEL takes any prevResult"),
		{"DEL", types.ErrUnknownContainer}: never("what is not there is detached"),
		{"DEL", types.ErrIOFailure}: provoke(func(t *testing.T, r *rig, v string) error {
			rt := newPod(t, "web").runtimeConf()
			if _, err := r.cni.AddNetworkList(t.Context(), r.list(t, v, nil), rt); err != nil {
				t.Error(err)
			}
			writable := r.disk.readOnly(t)
			err := r.cni.DelNetworkList(t.Context(), r.list(t, v, nil), rt)
			writable()
			if err := r.cni.DelNetworkList(t.Context(), r.list(t, v, nil), rt); err != nil {
				t.Error(err)
			}
			return err
		}),
		{"DEL", types.ErrInvalidNetNS}: raw("DEL", func(c call) call { return c.with("NETNS", "/proc/self/ns/net") }),
		{"DEL", types.ErrInternal}:     never("it needs a kernel, or a switch, that refuses to delete"),
	})
}

// checkOf is a CHECK with the plugin's result of an ADD, which change may modify. The attachment is deleted afterwards.
func checkOf(change func(t *testing.T, r *rig, p *pod, c call) call) cell {
	return provoke(func(t *testing.T, r *rig, v string) error {
		p := newPod(t, "web")
		list, rt := r.list(t, v, nil), p.runtimeConf()
		if _, err := r.cni.AddNetworkList(t.Context(), list, rt); err != nil {
			t.Fatal(err)
		}
		prev, err := r.cni.GetNetworkListCachedResult(list, rt)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := prev.PrintTo(&text); err != nil {
			t.Fatal(err)
		}
		c := r.callFor("CHECK", v, p)
		c.stdin = strings.TrimSuffix(c.stdin, "}") + `,"prevResult":` + text.String() + `}`
		_, err = r.run(t, change(t, r, p, c))
		if delErr := r.cni.DelNetworkList(t.Context(), list, rt); delErr != nil {
			t.Error(delErr)
		}
		return err
	})
}

func checkRows() map[key]cell {
	return common("CHECK", map[key]cell{
		{"CHECK", 0}: provoke(func(t *testing.T, r *rig, v string) error {
			list, rt := r.list(t, v, nil), newPod(t, "web").runtimeConf()
			if _, err := r.cni.AddNetworkList(t.Context(), list, rt); err != nil {
				t.Error(err)
			}
			err := r.cni.CheckNetworkList(t.Context(), list, rt)
			if err := r.cni.DelNetworkList(t.Context(), list, rt); err != nil {
				t.Error(err)
			}
			return err
		}),
		{"CHECK", types.ErrUnsupportedField}: never("CHECK must have a prevResult"),
		{"CHECK", types.ErrUnknownContainer}: raw("CHECK", func(c call) call { return c }),
		{"CHECK", types.ErrIOFailure}:        never("CHECK writes nothing"),
		{"CHECK", types.ErrDecodingFailure}: checkOf(func(_ *testing.T, _ *rig, _ *pod, c call) call {
			return c.withStdin(strings.Replace(c.stdin, `"10.128.2.`, `"nonsense`, 1))
		}),
		{"CHECK", types.ErrInvalidNetworkConfig}: checkOf(func(_ *testing.T, _ *rig, _ *pod, c call) call {
			return c.withStdin(strings.Replace(c.stdin, `"mac": "0a:58:`, `"mac": "0a:59:`, 1))
		}),
		{"CHECK", types.ErrInvalidNetNS}: checkOf(func(_ *testing.T, _ *rig, _ *pod, c call) call {
			return c.with("NETNS", "/run/netns/none")
		}),
		{"CHECK", pods.ErrAttachmentChanged}: checkOf(func(t *testing.T, _ *rig, p *pod, c call) call {
			if err := p.netns.Do(func(ns.NetNS) error {
				link, err := netlinksafe.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkSetDown(link)
			}); err != nil {
				t.Error(err)
			}
			return c
		}),
		{"CHECK", types.ErrInternal}: never("it needs a bug"),
	})
}

func gcRows() map[key]cell {
	return common("GC", map[key]cell{
		{"GC", 0}: provoke(func(t *testing.T, r *rig, v string) error {
			retain, drop := newPod(t, "retain"), newPod(t, "drop")
			list := r.list(t, v, nil)
			for _, p := range []*pod{retain, drop} {
				if _, err := r.cni.AddNetworkList(t.Context(), list, p.runtimeConf()); err != nil {
					t.Error(err)
				}
			}
			valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: retain.id, IfName: "eth0"}}}
			if err := r.cni.GCNetworkList(t.Context(), list, valid); err != nil {
				return err
			}
			if err := r.cni.CheckNetworkList(t.Context(), list, retain.runtimeConf()); err != nil {
				t.Error(err)
			}
			return r.cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{})
		}),
		{"GC", types.ErrUnsupportedField}: never("GC has no prevResult"),
		{"GC", types.ErrUnknownContainer}: never("GC names no container"),
		{"GC", types.ErrIOFailure}: provoke(func(t *testing.T, r *rig, v string) error {
			p := newPod(t, "web")
			if _, err := r.run(t, r.callFor("ADD", v, p)); err != nil { // no cached result: libcni would send DEL
				t.Error(err)
			}
			writable := r.disk.readOnly(t)
			c := r.callFor("GC", v, p)
			c.stdin = strings.TrimSuffix(c.stdin, "}") + `,"cni.dev/valid-attachments":[]}`
			_, err := r.run(t, c)
			writable()
			if _, err := r.run(t, c); err != nil {
				t.Error(err)
			}
			r.awaitStatus(t, 0)
			return err
		}),
		{"GC", types.ErrInvalidNetNS}: never("GC names no namespace"),
		{"GC", types.ErrInternal}:     never("it needs a kernel, or a switch, that refuses to delete"),
	})
}

func statusRows() map[key]cell {
	return common("STATUS", map[key]cell{
		{"STATUS", 0}: provoke(func(t *testing.T, r *rig, v string) error {
			return r.cni.GetStatusNetworkList(t.Context(), r.list(t, v, nil))
		}),
		{"STATUS", types.ErrUnsupportedField}: never("STATUS has no prevResult"),
		{"STATUS", types.ErrUnknownContainer}: never("STATUS names no container"),
		{"STATUS", types.ErrIOFailure}:        never("it is 50"),
		{"STATUS", types.ErrInvalidNetNS}:     never("STATUS names no namespace"),
		{"STATUS", types.ErrTryAgainLater}:    never("it is 50"),
		{"STATUS", types.ErrInternal}:         never("it needs a bug"),
		{"STATUS", types.ErrPluginNotAvailable}: provoke(func(t *testing.T, r *rig, v string) error {
			if testing.Short() {
				t.Skip("complete tier: waits for the agent's next look at the disk")
			}
			// A disk that fails, and the agent away.
			free := r.disk.fill(t)
			list := r.list(t, v, nil)
			if _, err := r.cni.AddNetworkList(t.Context(), list, newPod(t, "web").runtimeConf()); code(t, err) != types.ErrIOFailure {
				t.Errorf("ADD: %v", err)
			}
			if err := r.cni.GetStatusNetworkList(t.Context(), list); code(t, err) != types.ErrPluginNotAvailable {
				t.Errorf("on a full disk: %v", err)
			}
			free()
			r.awaitStatus(t, 0) // it looks again by itself
			r.stop(t)
			defer r.start(t)
			return r.cni.GetStatusNetworkList(t.Context(), list)
		}),
		{"STATUS", types.ErrLimitedConnectivity}: provoke(func(t *testing.T, r *rig, v string) error {
			if testing.Short() {
				t.Skip("complete tier: waits for timeouts of Open vSwitch")
			}
			resume := r.PauseVSwitchd(t)
			r.awaitStatus(t, types.ErrLimitedConnectivity)
			err := r.cni.GetStatusNetworkList(t.Context(), r.list(t, v, nil))
			resume()
			r.awaitStatus(t, 0)
			return err
		}),
	})
}

func versionRows() map[key]cell {
	rows := map[key]cell{
		{"VERSION", 0}: provoke(func(t *testing.T, r *rig, _ string) error {
			info, err := r.cni.GetVersionInfo(t.Context(), "ovsdn-cni")
			if err == nil && !slices.Equal(info.SupportedVersions(), versions()) {
				t.Errorf("VERSION: %v", info.SupportedVersions())
			}
			return err
		}),
	}
	for _, c := range codes()[1:] {
		rows[key{"VERSION", c}] = never("VERSION calls no agent and reads nothing")
	}
	return rows
}
