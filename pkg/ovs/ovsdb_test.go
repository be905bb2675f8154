package ovs

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Output of ovs-vsctl 3.1 for a bridge with tun0 (2), a veth whose device is missing, and a port of another bridge.
const portTables = `{"data":[[["set",[["uuid","11111111-0000-0000-0000-000000000001"],["uuid","11111111-0000-0000-0000-000000000002"],["uuid","11111111-0000-0000-0000-000000000003"]]]]],"headings":["ports"]}
{"data":[[["uuid","11111111-0000-0000-0000-000000000001"],"br0",["uuid","22222222-0000-0000-0000-000000000001"]],[["uuid","11111111-0000-0000-0000-000000000002"],"tun0",["uuid","22222222-0000-0000-0000-000000000002"]],[["uuid","11111111-0000-0000-0000-000000000003"],"gone",["uuid","22222222-0000-0000-0000-000000000003"]],[["uuid","11111111-0000-0000-0000-000000000004"],"eth0",["uuid","22222222-0000-0000-0000-000000000004"]]],"headings":["_uuid","name","interfaces"]}
{"data":[[["uuid","22222222-0000-0000-0000-000000000001"],"br0","internal",["map",[]],65534,["set",[]],["set",[]],["map",[]],["set",[]]],[["uuid","22222222-0000-0000-0000-000000000002"],"tun0","internal",["map",[]],2,1450,"0a:58:0a:80:00:01",["map",[["pod","a \"b\""],["uid","7"]]],["set",[]]],[["uuid","22222222-0000-0000-0000-000000000003"],"gone","",["map",[["k","v"]]],-1,["set",[]],["set",[]],["map",[]],"could not open network device gone (No such device)"],[["uuid","22222222-0000-0000-0000-000000000004"],"eth0","",["map",[]],["set",[]],["set",[]],["set",[]],["map",[]],["set",[]]]],"headings":["_uuid","name","type","options","ofport","mtu_request","mac","external_ids","error"]}
`

func decodePortTables(out string) ([]Port, error) {
	tables, err := decodeTables([]byte(out), 3)
	if err != nil || len(tables[0]) == 0 {
		return nil, err
	}
	return decodePorts(tables[0][0], tables[1], tables[2], "br0")
}

func TestDecodePorts(t *testing.T) {
	got, err := decodePortTables(portTables)
	if err != nil {
		t.Fatal(err)
	}
	want := []Port{
		{Name: "gone", OFPort: -1, Options: map[string]string{"k": "v"}, Error: "could not open network device gone (No such device)"},
		{Name: "tun0", Type: "internal", OFPort: 2, MTURequest: 1450, MAC: "0a:58:0a:80:00:01", ExternalIDs: map[string]string{"pod": `a "b"`, "uid": "7"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDecodeTablesRefuses(t *testing.T) {
	for name, out := range map[string]string{
		"nothing":          "",
		"a table missing":  `{"data":[],"headings":["ports"]}`,
		"no JSON":          "ovs-vsctl: something\n",
		"a short row":      strings.Replace(portTables, `"tun0",["uuid","22222222-0000-0000-0000-000000000002"]]`, `"tun0"]`, 1),
		"a column missing": strings.Replace(portTables, `"ofport"`, `"other"`, 1),
		"a map for a set":  strings.Replace(portTables, `["set",[["uuid"`, `["map",[["uuid"`, 1),
		"a set for a map":  strings.Replace(portTables, `["map",[["pod"`, `["set",[["pod"`, 1),
		"a half pair":      strings.Replace(portTables, `["k","v"]`, `["k"]`, 1),
		"a bad number":     strings.Replace(portTables, `["map",[]],2,1450`, `["map",[]],true,1450`, 1),
		"two values":       strings.Replace(portTables, `"0a:58:0a:80:00:01"`, `["set",["a","b"]]`, 1),
		"a null":           strings.Replace(portTables, `"0a:58:0a:80:00:01"`, `null`, 1),
		"unknown notation": strings.Replace(portTables, `"0a:58:0a:80:00:01"`, `["list","a"]`, 1),
		"lost interface":   strings.Replace(portTables, `"tun0",["uuid","22222222-0000-0000-0000-000000000002"]`, `"tun0",["uuid","22222222"]`, 1),
	} {
		if out == portTables {
			t.Errorf("%s: the test changes nothing", name)
		}
		if ports, err := decodePortTables(out); err == nil {
			t.Errorf("%s: got %v, want an error", name, ports)
		}
	}
}

func FuzzDecodePorts(f *testing.F) {
	f.Add(portTables)
	f.Add(`{"data":[[1]],"headings":["ports"]}{"data":[],"headings":[]}{"data":[],"headings":[]}`)
	f.Fuzz(func(t *testing.T, out string) {
		ports, err := decodePortTables(out)
		if err != nil && ports != nil {
			t.Errorf("ports %v with error %v", ports, err)
		}
	})
}

func FuzzVSCtlString(f *testing.F) {
	f.Add(`a "quoted", {braced}=[value] \`)
	f.Fuzz(func(t *testing.T, s string) {
		q, err := vsctlString(s)
		if err != nil {
			return
		}
		if got, err := (row{}).atom([]byte(q)); err != nil || got != s {
			t.Errorf("%q became %s, read back as %q, %v", s, q, got, err)
		}
	})
}
