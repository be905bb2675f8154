package pods

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// An address is released after what depends on it, on each path: DEL, GC, the cleanup of a failed ADD, and the reconciliation of a deleted sandbox.
func TestBeforeRelease(t *testing.T) {
	for name, detach := range map[string]func(a *agent, n *node, req *cniserver.Request) error{
		"DEL": func(a *agent, _ *node, req *cniserver.Request) error { return a.Del(t.Context(), req) },
		"GC": func(a *agent, _ *node, req *cniserver.Request) error {
			gc := *req
			gc.Config = []byte(`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni","cni.dev/valid-attachments":[]}`)
			return a.GC(t.Context(), &gc)
		},
		"deleted sandbox": func(a *agent, _ *node, req *cniserver.Request) error {
			if err := a.links.Delete(t.Context(), sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}.HostVeth()); err != nil {
				return err
			}
			return a.reconcile(t.Context(), allValid)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			a, _ := n.start(t)
			req := n.addPod("web", newNetns(t))
			if _, err := a.Add(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			failure := errors.New("rules remain")
			a.beforeRelease = func(context.Context, sandbox.Attachment) error { return failure }
			if err := detach(a, n, req); !errors.Is(err, failure) {
				t.Errorf("got error %v, want that of the dependent", err)
			}
			leases, err := a.ipam.List()
			if err != nil || len(leases) != 1 {
				t.Errorf("got leases %v (%v), want that of the pod", leases, err)
			}
			var released []sandbox.Attachment
			a.beforeRelease = func(_ context.Context, a sandbox.Attachment) error { released = append(released, a); return nil }
			if err := a.Del(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			if want := []sandbox.Attachment{{Sandbox: req.ContainerID, IfName: req.IfName}}; !slices.Equal(released, want) {
				t.Errorf("got calls for %v, want %v", released, want)
			}
			n.wantClean(t)
		})
	}
}
