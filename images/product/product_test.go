package product

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/images/debian"
	"github.com/ovsdn/ovsdn/images/image"
	"github.com/ovsdn/ovsdn/pkg/version"
	"github.com/ovsdn/ovsdn/test/tier"
)

// newSource builds the programs as `make build` does. These tests do not fail for pinned packages that Debian's archive no longer has.
func newSource(t *testing.T) Source {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir,
		"./cmd/ovsdn-controller", "./cmd/ovsdn-node", "./cmd/ovsdn-cni", "github.com/containernetworking/plugins/plugins/meta/portmap")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return Source{
		Checkout: "../..", BinDir: dir, Packages: debian.Store{Dir: debian.DefaultDir},
		Version:  version.Info{Version: "v1.2.3", Revision: "0123abcd", Created: "2026-01-02T03:04:05Z"},
		Unpinned: func(why error) { t.Logf("with other versions than the pinned ones: %v", why) },
	}
}

func TestImages(t *testing.T) {
	tier.Parallel(t)
	source := newSource(t)
	for name, test := range map[Name]struct {
		user     string
		commands map[string]string // that run in the image's own root: what they print
		parts    []string          // in the bill of materials
	}{
		Controller: {"65532:65532", map[string]string{"/ovsdn-controller --version": "ovsdn-controller version"}, []string{"stdlib", "k8s.io/client-go"}},
		Node: {"", map[string]string{
			"/usr/bin/ovsdn-node --version": "ovsdn-node version", "/usr/bin/ovsdn-cni --version": "ovsdn-cni version",
			"/usr/sbin/iptables --version": "(nf_tables)", "/usr/sbin/iptables-legacy --version": "(legacy)",
			"/usr/bin/portmap": "CNI portmap plugin", "/usr/sbin/nft --version": "nftables v", "/usr/lib/ovsdn/iptables-legacy/iptables --version": "(legacy)",
		}, []string{"stdlib", "k8s.io/client-go", "libc6", "iptables", "nftables", "portmap", "github.com/containernetworking/plugins"}},
		OVS: {"", map[string]string{
			"/usr/bin/ovs-start": "usage: ovs-start db|switch", "/usr/sbin/ovs-vswitchd --version": "(Open vSwitch)", "/usr/sbin/ovsdb-server --version": "(Open vSwitch)",
			"/usr/bin/ovs-vsctl --version": "(Open vSwitch)", "/usr/bin/ovs-appctl --version": "(Open vSwitch)", "/usr/bin/ovsdb-tool db-name /usr/share/openvswitch/vswitch.ovsschema": "",
		}, []string{"openvswitch-switch", "libc6", "busybox-static"}},
	} {
		t.Run(string(name), func(t *testing.T) {
			i, err := source.Image(t.Context(), name, "test")
			if err != nil {
				t.Fatal(err)
			}
			t.Run("reproducible", func(t *testing.T) {
				if testing.Short() && name != Controller {
					t.Skip("complete tier: size")
				}
				checkReproducible(t, source, name, i)
			})
			size, err := i.Size()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%.1f MB, of %d that it may have", float64(size)/1e6, name.MaxSize()/1e6)
			if i.User != test.user || i.Labels["org.opencontainers.image.version"] != "v1.2.3" || i.Labels["org.opencontainers.image.revision"] != "0123abcd" {
				t.Errorf("got user %q and labels %v, want user %q, version v1.2.3 and revision 0123abcd", i.User, i.Labels, test.user)
			}
			checkSBOM(t, i, name, test.parts)
			digest, err := i.Digest()
			if err != nil {
				t.Fatal(err)
			}
			sbom, err := SBOM(name, i)
			if err != nil {
				t.Fatal(err)
			}
			checkProvenance(t, source, name, digest, sbom)
			if name == Controller {
				checkControllerFiles(t, i)
			}
			root := t.TempDir()
			if err := image.LayOut(i.Files, root); err != nil {
				t.Fatal(err)
			}
			checkCommands(t, root, test.commands)
		})
	}
}

// checkReproducible checks that the same programs in another directory make the same image.
func checkReproducible(t *testing.T, source Source, name Name, i *image.Image) {
	t.Helper()
	again, err := copyPrograms(t, source).Image(t.Context(), name, "test")
	if err != nil {
		t.Fatal(err)
	}
	if one, two := id(t, i), id(t, again); one != two {
		t.Errorf("got image IDs %s and %s for the same input, want one", one, two)
	}
	if one, two := archiveSum(t, i), archiveSum(t, again); !bytes.Equal(one, two) {
		t.Errorf("got archives with SHA-256 %x and %x for the same input in two directories, want one", one, two)
	}
}

// checkCommands runs commands in a root directory, and compares what they print.
func checkCommands(t *testing.T, root string, commands map[string]string) {
	t.Helper()
	for command, want := range commands {
		args := strings.Fields(command)
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.SysProcAttr = &unix.SysProcAttr{Chroot: root}
		cmd.Dir = "/"
		// Invalid usage fails and prints the expected text.
		if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), want) || len(out) == 0 {
			t.Errorf("%s: %v: got output %q, want %q in it", command, err, out, want)
		}
	}
}

// copyPrograms returns the source with the programs in another directory, written at another time.
func copyPrograms(t *testing.T, source Source) Source {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(source.BinDir)); err != nil {
		t.Fatal(err)
	}
	source.BinDir = dir
	return source
}

// archiveSum writes the image's archive, and returns its SHA-256.
func archiveSum(t *testing.T, i *image.Image) []byte {
	t.Helper()
	sum := sha256.New()
	if err := i.Write(sum); err != nil {
		t.Fatal(err)
	}
	return sum.Sum(nil)
}

func id(t *testing.T, i *image.Image) string {
	t.Helper()
	id, err := i.ID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// checkSBOM reads the bill of materials as SPDX, by the names of its fields.
func checkSBOM(t *testing.T, i *image.Image, name Name, parts []string) {
	t.Helper()
	at := slices.IndexFunc(i.Files, func(f image.File) bool { return f.Path == "/usr/share/sbom/ovsdn-"+string(name)+".spdx.json" })
	if at < 0 {
		t.Fatal("the image has no bill of materials")
	}
	var document struct {
		SPDXVersion       string
		DocumentNamespace string
		Packages          []struct {
			SPDXID, Name, VersionInfo string
		}
		Relationships []struct{ SPDXElementID, RelationshipType, RelatedSPDXElement string }
	}
	if err := json.Unmarshal(i.Files[at].Content, &document); err != nil {
		t.Fatal(err)
	}
	if document.SPDXVersion != "SPDX-2.3" || document.DocumentNamespace == "" {
		t.Errorf("the document is of %q, in namespace %q", document.SPDXVersion, document.DocumentNamespace)
	}
	if read, err := spdxjson.Read(bytes.NewReader(i.Files[at].Content)); err != nil {
		t.Errorf("read the document by the SPDX library: %v", err)
	} else if err := spdxlib.ValidateDocument(read); err != nil {
		t.Error(err)
	}
	ids := map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, p := range document.Packages {
		if ids[p.SPDXID] || p.VersionInfo == "" {
			t.Errorf("package %+v: its ID is not its own, or it has no version", p)
		}
		ids[p.SPDXID] = true
		parts = slices.DeleteFunc(parts, func(part string) bool { return part == p.Name })
	}
	if len(parts) > 0 {
		t.Errorf("%v are not in the bill of materials", parts)
	}
	for _, r := range document.Relationships {
		if !ids[r.SPDXElementID] || !ids[r.RelatedSPDXElement] {
			t.Errorf("relationship %+v has an unknown element", r)
		}
	}
}

// checkControllerFiles checks that the controller's image has one static program and its bill of materials.
func checkControllerFiles(t *testing.T, i *image.Image) {
	t.Helper()
	if len(i.Files) != 2 || i.Files[0].Path != "/ovsdn-controller" {
		t.Fatalf("the image holds %d files, the first is %s", len(i.Files), i.Files[0].Path)
	}
	binary, err := elf.Open(i.Files[0].Source)
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	if slices.ContainsFunc(binary.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("the program is not static")
	}
}

func TestKeyFollowsInput(t *testing.T) {
	dir := t.TempDir()
	for _, program := range []string{"ovsdn-controller", "ovsdn-node", "ovsdn-cni", "portmap"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source := Source{Checkout: "../..", BinDir: dir}
	key := func(n Name) string {
		k, err := source.Key(n)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	before := map[Name]string{}
	for _, n := range All() {
		before[n] = key(n)
	}
	if err := os.WriteFile(filepath.Join(dir, "ovsdn-cni"), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if key(Node) == before[Node] || key(Controller) != before[Controller] || key(OVS) != before[OVS] {
		t.Error("another plugin must change the node's key, and no other")
	}
	source.Version.Version = "v2"
	for _, n := range All() {
		if key(n) == before[n] {
			t.Errorf("another version has not changed the key of %s", n)
		}
	}
}

// An unknown package in a lock file is an error with a remedy, and the reason for the use of other versions where these are allowed.
func TestUnknownPackage(t *testing.T) {
	source := Source{Checkout: t.TempDir(), Packages: debian.Store{Dir: t.TempDir()}}
	lock := source.LockPath(OVS)
	if err := os.MkdirAll(filepath.Dir(lock), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lock, []byte("no-such-package 1 "+strings.Repeat("0", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", fakeApt(t))
	if _, err := source.Files(t.Context(), OVS); err == nil || !strings.Contains(err.Error(), "no-such-package=1") || !strings.Contains(err.Error(), "images/build lock") {
		t.Errorf("error %v does not name the package and the remedy", err)
	}
	var reason error
	source.Unpinned = func(err error) { reason = err }
	if _, err := source.Files(t.Context(), OVS); err == nil || reason == nil {
		t.Errorf("error %v, reason %v; want both", err, reason)
	}
}

// fakeApt returns the directory of an apt-get without packages, which needs no network.
func fakeApt(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\nexit 100\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
