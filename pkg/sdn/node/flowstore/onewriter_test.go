package flowstore

import (
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/go/packages"
)

const module = "github.com/ovsdn/ovsdn/"

// writers returns the methods of *native.Native, and functions, that change Open vSwitch or connections, with the packages below pkg/sdn/node that use them. A package
// counts that calls the method of an interface, not the one that passes the client.
func writers() map[string][]string {
	return map[string][]string{
		// Flows, groups, meters and connections.
		"Run":       {"flowstore"},
		"Replace":   {"flowstore"},
		"ReplaceIn": {"restorewait"}, // its Bridge is the store's, and wraps Replace

		// Packets through the flows.
		"Inject": {"idling"}, // those that it has held

		// The database: the bridge, its ports and settings.
		"EnsureBridge":   {"br0"},
		"DeleteBridge":   {"pkg/sdn/node"}, // an uninstallation
		"AddPort":        {"br0", "pods"},
		"DeletePort":     {"br0", "pods"},
		"EnsureExporter": {"flowexport", "pkg/sdn/node"},  // an uninstallation removes it
		"SetRestoreWait": {"pkg/sdn/node", "restorewait"}, // an uninstallation clears it

		// Settings of vswitchd by unixctl.
		"LimitZones":         {"zonelimits"},
		"SetTunnelNeighbour": {"tunnelneighbours"},

		// The kernel's connections.
		"netlinksafe.ConntrackDeleteFilters": {"hostconntrack"}, // in zone 0, which is the host's
		"hostconntrack.Flush":                {"hostports", "servicenat"},
	}
}

// readers returns the other methods of *native.Native. They read, or concern the client's own session.
func readers() []string {
	return []string{
		"AwaitDatapath", "AwaitEvents", "Close", "Connected", "DatapathStats", "DumpFlows", "DumpMeters", "ListConnections", "ListPorts", "ListTunnelNeighbours", "Missing",
		"MonitorTables", "NewTransaction", "OwnerDrops", "PortStats", "RestoreWait", "Session", "TableDrops", "TableStats", "Trace", "Traces", "Tracker", "TunnelHop",
		"TunnelNeighbourAging", "Version", "Watch", "WatchPackets", "ZoneLimits", "ZoneUse",
	}
}

// No other package of the product changes flows, groups, meters or connections of the bridge (docs/decisions/0010).
func TestOneWriter(t *testing.T) {
	loaded, err := packages.Load(&packages.Config{Context: t.Context(), Dir: "../../../..", Mode: packages.LoadSyntax}, "./pkg/...", "./cmd/...")
	if err != nil {
		t.Fatal(err)
	}
	client := methodsOfClient(t, loaded)
	got := map[string][]string{}
	for _, p := range loaded {
		for _, err := range p.Errors {
			t.Error(err)
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p.PkgPath, module), "pkg/sdn/node/")
		if name == "pkg/ovs" || strings.HasPrefix(name, "pkg/ovs/") {
			continue
		}
		for _, object := range p.TypesInfo.Uses {
			if use := useOf(object, client); use != "" && !slices.Contains(readers(), use) {
				got[use] = append(got[use], name)
			}
		}
	}
	for use, names := range got {
		slices.Sort(names)
		got[use] = slices.Compact(names)
	}
	if diff := cmp.Diff(writers(), got); diff != "" {
		t.Errorf("packages that change Open vSwitch or connections (-want +got):\n%s", diff)
	}
}

// methodsOfClient returns the exported methods of *native.Native. Each must be in one of the lists.
func methodsOfClient(t *testing.T, loaded []*packages.Package) map[string]types.Type {
	t.Helper()
	i := slices.IndexFunc(loaded, func(p *packages.Package) bool { return p.PkgPath == module+"pkg/ovs/native" })
	if i < 0 {
		t.Fatal("got no package native")
	}
	methods := types.NewMethodSet(types.NewPointer(loaded[i].Types.Scope().Lookup("Native").Type()))
	client := map[string]types.Type{}
	for i := range methods.Len() {
		if method := methods.At(i); method.Obj().Exported() {
			client[method.Obj().Name()] = method.Type()
		}
	}
	want := slices.Clone(readers())
	for name := range writers() {
		if !strings.Contains(name, ".") {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(client))); diff != "" {
		t.Errorf("methods of native.Native (-want +got):\n%s\nA method that changes Open vSwitch belongs in writers, another in readers", diff)
	}
	return client
}

// useOf returns the name in the lists of a method or function: a client's method, or one with its signature of an interface or of a type that wraps the client. It
// returns "" for others.
func useOf(object types.Object, client map[string]types.Type) string {
	f, ok := object.(*types.Func)
	if !ok || f.Pkg() == nil {
		return ""
	}
	method := client[f.Name()]
	switch name := f.Pkg().Name() + "." + f.Name(); {
	case f.Signature().Recv() != nil && method != nil && types.Identical(f.Signature(), method):
		return f.Name()
	case f.Pkg().Path() == module+"pkg/ovs/openflow" && f.Name() == "Append": // messages to a session of another package
		return name
	case f.Pkg().Path() == module+"pkg/sdn/node/hostconntrack" && f.Name() == "Flush":
		return name
	case strings.HasPrefix(name, "netlink") && strings.HasPrefix(f.Name(), "Conntrack") && f.Name() != "ConntrackTableList":
		return name
	}
	return ""
}
