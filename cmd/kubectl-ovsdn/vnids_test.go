package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func netNamespaces() []networkv1.NetNamespace {
	list := []networkv1.NetNamespace{
		{NetID: 4242, EgressIPs: []networkv1.NetNamespaceEgressIP{"192.0.2.9", "192.0.2.10"}, ObjectMeta: metav1.ObjectMeta{Name: "red",
			Annotations: map[string]string{"netnamespace.network.openshift.io/multicast-enabled": "true"}}},
		{NetID: 0, ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		{NetID: 4242, ObjectMeta: metav1.ObjectMeta{Name: "green",
			Annotations: map[string]string{"pod.network.openshift.io/multitenant.change-network": "isolate"}}},
		{NetID: 7, ObjectMeta: metav1.ObjectMeta{Name: "broken"}},
		{NetID: 16777215, ObjectMeta: metav1.ObjectMeta{Name: "refused",
			Annotations: map[string]string{"ovsdn.io/change-refused": "join:x is refused: there is no Namespace x",
				"pod.network.openshift.io/multitenant.change-network": "refused:join:x"}}},
		{NetID: 5, ObjectMeta: metav1.ObjectMeta{Name: "recorded", Annotations: map[string]string{"ovsdn.io/assigned-netid": "4343"}}},
	}
	for i := range list {
		list[i].NetName = list[i].Name
	}
	return list
}

func TestGetVNIDs(t *testing.T) {
	for _, tc := range []struct {
		name, format, out, err string
		noHeaders              bool
		names                  []string
	}{
		{name: "a table", out: `
NAMESPACE   VNID
broken      7
default     0
green       4242
recorded    4343
red         4242
refused     16777215
`},
		{name: "wide", format: "wide", out: `
NAMESPACE   VNID       SHARED WITH   MULTICAST   EGRESS IPS             NOTE
broken      7          <none>        false       <none>                 netid: 7 is not a VNID: write 0 (global), or a number from 10 to 16777215
default     0          <all>         false       <none>                 <none>
green       4242       red           false       <none>                 requested: isolate
recorded    4343       <none>        false       <none>                 netid: 5 is not a VNID: write 0 (global), or a number from 10 to 16777215; until then VNID 4343 stays in use
red         4242       green         true        192.0.2.9,192.0.2.10   <none>
refused     16777215   <none>        false       <none>                 join:x is refused: there is no Namespace x
`},
		{name: "some, without headers", noHeaders: true, names: []string{"red", "default"}, out: `
default   0
red       4242
`},
		{name: "names", format: "name", names: []string{"red", "green"}, out: `
netnamespace.network.openshift.io/green
netnamespace.network.openshift.io/red
`},
		{name: "one as YAML", format: "yaml", names: []string{"green"}, out: `
apiVersion: network.openshift.io/v1
kind: NetNamespace
metadata:
  annotations:
    pod.network.openshift.io/multitenant.change-network: isolate
  name: green
netid: 4242
netname: green
`},
		{name: "two as JSON", format: "json", names: []string{"default", "broken"}, out: `
{
    "apiVersion": "v1",
    "items": [
        {
            "apiVersion": "network.openshift.io/v1",
            "kind": "NetNamespace",
            "metadata": {
                "name": "broken"
            },
            "netid": 7,
            "netname": "broken"
        },
        {
            "apiVersion": "network.openshift.io/v1",
            "kind": "NetNamespace",
            "metadata": {
                "name": "default"
            },
            "netid": 0,
            "netname": "default"
        }
    ],
    "kind": "List",
    "metadata": {}
}
`},
		{name: "by a path", format: "jsonpath={.netid}", names: []string{"red"}, out: "\n4242"},
		{name: "one that is not there", names: []string{"red", "x"}, out: `
NAMESPACE   VNID
red         4242
`, err: "namespace x has no VNID: no NetNamespace has that name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			streams, _, out, _ := genericiooptions.NewTestIOStreams()
			flags := genericclioptions.NewPrintFlags("")
			flags.OutputFormat = &tc.format
			printer, err := tableOrObjects(flags, tc.noHeaders)
			if err != nil {
				t.Fatal(err)
			}
			err = printVNIDs(streams, printer, netNamespaces(), tc.names)
			if got := errorText(err); got != tc.err {
				t.Errorf("error %q", got)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tc.out, "\n"), out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestSharedWith_many(t *testing.T) {
	nn := networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "c"}, NetID: 10}
	if got := sharedWith(nn, []string{"a", "b", "c", "d", "e", "f"}); got != "a,b,d + 2 more..." {
		t.Error(got)
	}
}
