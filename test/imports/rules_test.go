package imports

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const nodePackages = "pkg/sdn/node/"

// others returns the packages of the agent that are no feature: features import them, or only pkg/sdn/node does.
func others() []string {
	return []string{
		"agentmetrics", "apihealth", "br0", "caches", "cniargs", "cnifiles", "cnihandler", "diagnosticsserver", "dnsresolver", "flowstore", "hostconntrack", "hostnet",
		"inputs", "installation", "ipam", "keyedlock", "linkmtu", "listeners", "neighbour", "netlinks", "nftables", "nodestatus", "podcapture", "podinterface", "podprobe", "restorewait",
		"sandbox", "servicenat", "servingcertificate", "sysctl", "veth", "zonelimits",
	}
}

// partsOfPods returns the features that pods imports.
func partsOfPods() []string { return []string{"macvlan", "podflows"} }

// rule is a rule of depguard.
type rule struct {
	Files []string
	Deny  []struct{ Pkg string }
}

// depguard returns the rules of .golangci.yml.
func depguard(t *testing.T) map[string]rule {
	t.Helper()
	text, err := os.ReadFile("../../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct{ Rules map[string]rule }
			}
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	return config.Linters.Settings.Depguard.Rules
}

// directories returns the directories of the globs, such as **/pkg/{a,b}/*.go.
func (r rule) directories() (all []string) {
	for _, glob := range r.Files {
		dir, ok := strings.CutPrefix(glob, "**/")
		if !ok {
			continue
		}
		dir = strings.TrimSuffix(dir, "/*.go")
		before, rest, braces := strings.Cut(dir, "{")
		names, after, _ := strings.Cut(rest, "}")
		if !braces {
			all = append(all, dir)
			continue
		}
		for name := range strings.SplitSeq(names, ",") {
			all = append(all, before+name+after)
		}
	}
	return all
}

// denied returns the packages of the agent that the rule denies.
func (r rule) denied() (names []string) {
	for _, d := range r.Deny {
		names = append(names, strings.TrimPrefix(d.Pkg, module+nodePackages))
	}
	return slices.Sorted(slices.Values(names))
}

// features returns the packages of the agent that are not in others.
func features(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("..", "..", nodePackages))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(others(), e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// Each package below pkg/sdn/node is a feature or one of the others, and depguard denies each feature to all features: macvlan and podflows by a rule of their own, since
// pods imports them.
func TestFeatureRules(t *testing.T) {
	rules, all := depguard(t), features(t)
	isPart := func(name string) bool { return slices.Contains(partsOfPods(), name) }
	whole := slices.DeleteFunc(slices.Clone(all), isPart)
	for _, tc := range []struct {
		what      string
		got, want []string
	}{
		{"files of rule features", namesOf(rules["features"]), all},
		{"packages that rule features denies", rules["features"].denied(), whole},
		{"files of rule parts", namesOf(rules["parts"]), slices.DeleteFunc(slices.Clone(whole), func(name string) bool { return name == "pods" })},
		{"packages that rule parts denies", rules["parts"].denied(), partsOfPods()},
	} {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s in .golangci.yml: got %v, want %v; a package that is no feature belongs in others()", tc.what, tc.got, tc.want)
		}
	}
}

// namesOf returns the sorted names of the agent's packages in the files of the rule.
func namesOf(r rule) (names []string) {
	for _, dir := range r.directories() {
		names = append(names, strings.TrimPrefix(dir, nodePackages))
	}
	return slices.Sorted(slices.Values(names))
}

// No feature imports another, except pods its parts. Only external tests import their own package.
func TestFeaturesDoNotImportFeatures(t *testing.T) {
	all := features(t)
	for _, feature := range all {
		files, err := filepath.Glob(filepath.Join("..", "..", nodePackages, feature, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got no files, error %v", feature, err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range file.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				imported, ok := strings.CutPrefix(path, module+nodePackages)
				if !ok || imported == feature || !slices.Contains(all, imported) || feature == "pods" && slices.Contains(partsOfPods(), imported) {
					continue
				}
				t.Errorf("%s imports the feature %s; publish an input of the flow store (docs/decisions/0009-inputs.md)", name, imported)
			}
		}
	}
}
