package main

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/ovsdn/ovsdn/pkg/sdn/node"
)

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
