package main

import (
	"runtime/debug"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/ovsdn/ovsdn/pkg/sdn/node"
)

func TestSetGCPercent(t *testing.T) {
	const before = 77
	defer debug.SetGCPercent(debug.SetGCPercent(before))
	for _, tc := range []struct {
		set  bool
		want int
	}{{true, before}, {false, gcPercent}} {
		setGCPercent(func(name string) (string, bool) { return "90", tc.set && name == "GOGC" })
		if got := debug.SetGCPercent(before); got != tc.want {
			t.Errorf("GOGC set %t: got %d percent, want %d", tc.set, got, tc.want)
		}
	}
}

func TestAgentFlags_ipMasq(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want bool
	}{{nil, true}, {[]string{"--ip-masq=false"}, false}, {[]string{"--ip-masq"}, true}} {
		cfg := node.Defaults()
		f := pflag.NewFlagSet("ovsdn-node", pflag.ContinueOnError)
		agentFlags(f, &cfg)
		if err := f.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		if cfg.IPMasq != tc.want {
			t.Errorf("%q: got IPMasq %v, want %v", tc.args, cfg.IPMasq, tc.want)
		}
	}
}

func TestAgentFlags_nodePortAddresses(t *testing.T) {
	for _, tc := range []struct {
		args, want []string
	}{{nil, nil}, {[]string{"--nodeport-addresses="}, nil}, {[]string{"--nodeport-addresses=192.0.2.0/24,10.0.0.0/8"}, []string{"192.0.2.0/24", "10.0.0.0/8"}}} {
		cfg := node.Defaults()
		f := pflag.NewFlagSet("ovsdn-node", pflag.ContinueOnError)
		agentFlags(f, &cfg)
		if err := f.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(cfg.NodePortAddresses, tc.want) {
			t.Errorf("%q: got NodePortAddresses %q, want %q", tc.args, cfg.NodePortAddresses, tc.want)
		}
	}
}

func TestAgentFlags_unidle(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want bool
	}{{nil, false}, {[]string{"--unidle"}, true}} {
		cfg := node.Defaults()
		f := pflag.NewFlagSet("ovsdn-node", pflag.ContinueOnError)
		agentFlags(f, &cfg)
		if err := f.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		if cfg.Unidle != tc.want {
			t.Errorf("%q: got Unidle %v, want %v", tc.args, cfg.Unidle, tc.want)
		}
	}
}
