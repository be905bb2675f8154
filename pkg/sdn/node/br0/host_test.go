package br0

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// host is a network namespace with an Open vSwitch, and the agent's connection to it.
type host struct {
	*ovstest.Switch

	bridge *native.Native
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{Switch: ovstest.Start(t)}
	h.bridge = native.New(Name, h.RunDir)
	t.Cleanup(h.bridge.Close)
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
