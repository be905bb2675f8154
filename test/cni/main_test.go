// Package cni drives the plugin as container runtimes do: with libcni and cnitool, the plugin's own binary, and an agent in a
// process of its own (pod manager, CNI server, flow store) on a real Open vSwitch. Only the Kubernetes API is not real.
package cni

import (
	"os"
	"testing"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(asAgent); config != "" {
		if err := agentMain(config); err != nil {
			panic(err) // into the log that failed tests show
		}
		return
	}
	klog.SetLogger(klog.Logger{})
	await.VerifyTestMain(m)
}
