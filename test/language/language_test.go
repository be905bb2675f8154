package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLanguage_budget(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	got, err := count(root)
	if err != nil {
		t.Fatal(err)
	}
	budget, err := readBudget(filepath.Join(root, budgetFile))
	if err != nil {
		t.Fatal(err)
	}
	for dir, tally := range got.dirs {
		if tally.words > budget[dir] {
			t.Errorf("%s has %d words to avoid, want at most %d; list them: go run ./test/language -list %s", dir, tally.words, budget[dir], dir)
		}
	}
}

func TestVocabulary_find(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	vocabulary, err := readWords(filepath.Join(root, wordsFile))
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string][]string{
		"// Reports the failure.":                   nil,
		"tcp.SetKeepAlive(true) // keepalive":       nil,
		"if code == http.StatusGone {":              nil,
		"the gateway of a tenant":                   nil,
		"for users who run OpenShift SDN":           nil,
		"sayAgain := time.Second":                   {"say"},
		"func (p *peers) Gone(k string)":            {"gone"},
		"// Nobody keeps it any more.":              {"nobody", "keeps", "any more"},
		"takes all flows of the owner off":          {"takes all flows of the owner off"},
		"klog.Info(\"Said on the Node\")":           {"said"},
		"test_mended_bridge, and who has judged it": {"mended", "who", "judged"},
	} {
		var got []string
		for _, h := range vocabulary.find(line) {
			got = append(got, h.found)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("words in %q: got %q, want %q", line, got, want)
		}
	}
}

func TestReport_lowerNeverRaises(t *testing.T) {
	r := &report{dirs: map[string]*tally{"cmd": {words: 5}, "docs": {words: 5}, "pkg/ovs": {words: 5}}}
	got := r.lower(map[string]int{"cmd": 3, "docs": 9})
	for dir, want := range map[string]int{"cmd": 3, "docs": 5, "pkg/ovs": 5} {
		if got[dir] != want {
			t.Errorf("budget of %s: got %d, want %d", dir, got[dir], want)
		}
	}
}

func TestDirectory(t *testing.T) {
	for path, want := range map[string]string{
		"README.md": ".", "cmd/ovsdn-node/main.go": "cmd", "docs/decisions/README.md": "docs", "pkg/ovs/openflow/ct.go": "pkg/ovs",
		"pkg/sdn/config/vnid.go": "pkg/sdn", "pkg/sdn/node/node.go": "pkg/sdn/node", "pkg/sdn/node/flowstore/store.go": "pkg/sdn/node",
	} {
		if got := directory(filepath.FromSlash(path)); got != want {
			t.Errorf("directory of %s: got %s, want %s", path, got, want)
		}
	}
	if strings.Contains(directory("pkg/cniserver/protocol.go"), "sdn") {
		t.Error("pkg/cniserver is counted in pkg/sdn")
	}
}

func TestIsCounted(t *testing.T) {
	for name, want := range map[string]bool{
		"pkg/ovs/ovs.go": true, "docs/install.md": true, "Makefile": true, ".golangci.yml": true,
		"cmd/kubectl-ovsdn/dashboard/nodes.js": true, "cmd/kubectl-ovsdn/dashboard/index.html": true,
		"go.sum": false, "bench.json": false, "docs/dashboard/nodes.png": false,
	} {
		if got := isCounted(name); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}
