package reference

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/pkg/sdn/node"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicehealth"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
	"github.com/ovsdn/ovsdn/test/lab"
)

func TestReferenceDocument(t *testing.T) {
	sections := map[string]string{}
	maps.Copy(sections, flagSections(t))
	maps.Copy(sections, objectSections(t))
	maps.Copy(sections, hostSections(t))
	sections["cni-errors"] = cniErrors(t)
	checkDocument(t, "reference.md", sections)
}

func flagSections(t *testing.T) map[string]string {
	goFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(goFlags)
	usage := func(name string) string { return goFlags.Lookup(name).Usage }
	table := func(program string, defaults any, functions ...string) string {
		flags := parse(t, "cmd/"+program).Flags(functions, func(field string) string { return fieldOf(t, defaults, field) }, usage)
		if len(flags) == 0 {
			t.Errorf("%s: got no flags in functions %v, want some: correct their names", program, functions)
		}
		return FlagTable(flags)
	}
	return map[string]string{
		"flags-node":       table("ovsdn-node", node.Defaults(), "command", "agentFlags", "hostFlags", "flowExportFlags"),
		"flags-uninstall":  table("ovsdn-node", node.Defaults(), "hostFlags", "uninstallCommand"),
		"flags-controller": table("ovsdn-controller", master.Defaults(), "command"),
		"flags-kubectl":    table("kubectl-ovsdn", struct{}{}, "joinCommand", "changeCommand", "vnidsCommand", "statusCommand", "flowsCommand", "dashboardCommand"),
		"flags-lab":        table("ovsdn-lab", lab.DefaultShape(), "newRoot", "newUp"),
	}
}

// fieldOf returns the value of the field in an expression such as cfg.NodeName.
func fieldOf(t *testing.T, defaults any, field string) string {
	t.Helper()
	_, name, _ := strings.Cut(field, ".")
	if field == "lab.DefaultName" {
		return lab.DefaultName
	}
	value := reflect.ValueOf(defaults)
	for part := range strings.SplitSeq(name, ".") {
		if value = value.FieldByName(part); !value.IsValid() {
			break
		}
	}
	if !value.IsValid() {
		t.Errorf("default of a flag: %T has no field %s", defaults, name)
		return ""
	}
	if host, err := os.Hostname(); err == nil && name == "NodeName" && value.String() == host {
		return "$HOSTNAME"
	}
	if list, ok := value.Interface().([]string); ok {
		return strings.Join(list, ",")
	}
	if value.IsZero() {
		return ""
	}
	return fmt.Sprint(value.Interface())
}

func must(t *testing.T) func(string, error) string {
	return func(text string, err error) string {
		if err != nil {
			t.Error(err)
		}
		return text
	}
}

func objectSections(t *testing.T) map[string]string {
	configuration, egress := parse(t, "pkg/sdn/config"), parse(t, "pkg/sdn/egressstatus")
	return map[string]string{
		"events":            must(t)(EventTable(parse(t, "pkg/sdn/eventreason"))),
		"condition-node":    must(t)(ConditionTable(configuration, "NetworkUnavailable")),
		"condition-network": must(t)(ConditionTable(configuration, "ConditionAccepted")),
		"condition-egress":  must(t)(ConditionTable(egress, "ConditionAccepted")),
		"condition-merged":  must(t)(ConditionTable(egress, "ConditionMerged")),
		"annotations":       must(t)(AnnotationTable(configuration)),
	}
}

func hostSections(t *testing.T) map[string]string {
	agent, record, native, plugin := parse(t, "pkg/sdn/node"), parse(t, "pkg/sdn/node/sandbox"), parse(t, "pkg/ovs/native"), parse(t, "pkg/cniserver")
	hostnet := parse(t, "pkg/sdn/node/hostnet")
	var ids []Named
	for _, c := range record.Constants() {
		if strings.Contains(c.Block, "external_ids") {
			ids = append(ids, Named{record, c.Name, ""})
		}
	}
	defaults := node.Defaults()
	run := filepath.Dir(defaults.CNISocket) + "/"
	ports := NewTable("address", "meaning")
	ports.Add(Code("UDP "+strconv.Itoa(config.DefaultVXLANPort)), "VXLAN between nodes (`--vxlan-port`)")
	ports.Add(Code("TCP "+defaults.HealthzAddr), "`/healthz` and `/readyz` of ovsdn-node (`--healthz-bind-address`)")
	ports.Add(Code("TCP "+master.Defaults().HealthzAddress), "`/healthz` and `/readyz` of ovsdn-controller (`--healthz-bind-address`)")
	ports.Add(Code("TCP "+defaults.Metrics.Address), "`/metrics` and `/debug/pprof` of ovsdn-node by HTTPS (`--metrics-bind-address`)")
	ports.Add(Code("TCP "+master.Defaults().Metrics.Address), "`/metrics` and `/debug/pprof` of ovsdn-controller by HTTPS (`--metrics-bind-address`)")
	ports.Add(Code("TCP "+servicehealth.DefaultAddress), "`/healthz` and `/livez` of kube-proxy, by ovsdn-node (`--service-proxy=ovs`, `--service-healthz-bind-address`)")
	ports.Add(Code("TCP :healthCheckNodePort"), "health checks of Services by load balancers (`--service-proxy=ovs`)")
	return map[string]string{
		"external-ids": must(t)(ConstantTable("key", ids)),
		"ovsdb": must(t)(ConstantTable("key", []Named{
			{native, "keyOwner", "Bridge external_ids:"}, {native, "keyRestoreWait", "Open_vSwitch other_config:"},
		})),
		"files": must(t)(ConstantTable("path", []Named{
			{plugin, "ConfigName", defaults.CNIConfDir + "/"},
			{plugin, "PluginName", "/opt/cni/bin/"},
			{plugin, "DefaultSocket", ""},
			{plugin, "lockSuffix", defaults.CNISocket},
			{agent, "savedSysctlsFile", run},
			{agent, "hostPortsDir", run},
			{agent, "egressRulesDir", run},
			{agent, "ipamNetwork", defaults.IPAMDir + "/"},
			{native, "DefaultRunDir", ""},
			{agent, "uninstallMarker", "/var/run/openvswitch/"},
		})),
		"ports":  ports.String(),
		"chains": ChainTable(hostnet),
		"sets":   must(t)(ConstantTable("set", []Named{{hostnet, "vtepSet", ""}, {hostnet, "egressSet", ""}})),

		"sysctls": sysctls(),
	}
}

func sysctls() string {
	t := NewTable("sysctl", "value", "of", "change found", "restored by an uninstallation", "reason")
	for _, s := range sysctl.Table() {
		value, found, restored := Code(s.Value), "within 10 s", ""
		if s.AtLeast {
			value = "at least " + value
		}
		switch {
		case s.Scope == sysctl.ScopeVeth:
			found = "within a minute"
		case s.Reported:
			found = "at once"
		}
		if s.Saved {
			restored = "yes"
		}
		t.Add(Code(strings.ReplaceAll(s.Key, "/", ".")), value, string(s.Scope), found, restored, s.Reason)
	}
	return t.String()
}

func cniErrors(t *testing.T) string {
	codes := map[string]string{}
	for _, p := range []*Package{parseImport(t, "github.com/containernetworking/cni/pkg/types"), parse(t, "pkg/sdn/node/pods"), parse(t, "pkg/sdn/node/hostports")} {
		for _, c := range p.Constants() {
			codes[c.Name] = c.Value
		}
	}
	var all []CNIError
	for _, dir := range []string{"pkg/cniserver", "pkg/sdn/node/cniargs", "pkg/sdn/node/cnihandler", "pkg/sdn/node/hostports", "pkg/sdn/node/networkpolicy", "pkg/sdn/node/podflows", "pkg/sdn/node/podinterface", "pkg/sdn/node/pods", "pkg/sdn/node/vnids"} {
		all = append(all, parse(t, dir).CNIErrors()...)
	}
	table := NewTable("code", "message", "from")
	for _, e := range all {
		table.Add(codes[e.Code]+" "+Code(e.Code), e.Message, Code(e.Package))
	}
	slices.SortFunc(table.rows, func(a, b string) int {
		var x, y int
		_, _ = fmt.Sscanf(a, "| %d", &x)
		_, _ = fmt.Sscanf(b, "| %d", &y)
		if x != y {
			return x - y
		}
		return strings.Compare(a, b)
	})
	table.rows = slices.Compact(table.rows)
	return table.String()
}

// parseImport parses a package that the module imports.
func parseImport(t *testing.T, path string) *Package {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", path).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", path, err)
	}
	p, err := Parse(strings.TrimSpace(string(dir)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestReferenceIsComplete: the document has all annotations and labels in the sources and manifests.
func TestReferenceIsComplete(t *testing.T) {
	document, err := os.ReadFile(filepath.Join(root, "docs/reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, c := range parseImport(t, "github.com/openshift/api/network/v1").Constants() {
		values["networkv1."+c.Name] = c.Value
	}
	own, openshift := regexp.MustCompile(`ovsdn\.io/[a-z][a-z-]+`), regexp.MustCompile(`networkv1\.\w+Annotation`)
	for _, dir := range []string{"pkg", "cmd", "deploy"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			names := own.FindAllString(string(text), -1)
			for _, name := range openshift.FindAllString(string(text), -1) {
				names = append(names, values[name])
			}
			for _, name := range names {
				if !strings.Contains(string(document), name) {
					t.Errorf("%s has %s, which docs/reference.md lacks: add it to Annotations, Labels or OVSDB", path, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
