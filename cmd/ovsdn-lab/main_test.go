package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRoot_invalidInput(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string // part of the error
	}{
		{[]string{"up", "--service-proxy", "none"}, "--service-proxy \"none\": want one of external, ovs"},
		{[]string{"up", "--cluster-network", "10.128.0.0"}, "--cluster-network"},
		{[]string{"up", "--name", "Big"}, "--name"},
		{[]string{"up", "extra"}, "extra"},
		{[]string{"down", "--all", "--name", "lab"}, "--all removes every lab of this machine: omit --name"},
		{[]string{"--name", "lab", "down", "--all"}, "--all removes every lab of this machine: omit --name"},
		{[]string{"down", "--all", "extra"}, "extra"},
		{[]string{"prepare", "kube"}, "kube"},
		{[]string{"exec", "node1"}, "requires at least 2 arg"},
		{[]string{"remove-node"}, "accepts 1 arg"},
		{[]string{"sideways"}, "sideways"},
	} {
		root := newRoot()
		root.SetArgs(test.args)
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		err := root.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: error %v does not contain %q", test.args, err, test.want)
		}
	}
}

// The help of up lists the options of this version.
func TestUp_help(t *testing.T) {
	root := newRoot()
	root.SetArgs([]string{"up", "--help"})
	var out bytes.Buffer
	root.SetOut(&out)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"this version has subnet", "--host-bits", "--name"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help does not contain %q:\n%s", want, out.String())
		}
	}
}
