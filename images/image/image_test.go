package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

// entry is one file of a tar.
type entry struct {
	Name, Link, Content string
	Kind                byte
	Mode                int64
}

// failer is the common interface of testing.TB and rapid.T.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

func readTar(t failer, data []byte) []entry {
	t.Helper()
	var entries []entry
	archive := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s: owner %d:%d, time %s; want root and the epoch", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		entries = append(entries, entry{h.Name, h.Linkname, string(content), h.Typeflag, h.Mode})
	}
}

func write(t testing.TB, i *Image) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := i.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func digest(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func sourceFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func example(t testing.TB) *Image {
	return &Image{
		Ref:        "localhost/example:lab",
		Entrypoint: []string{"/opt/run"},
		Cmd:        []string{"wait"},
		Env:        []string{"PATH=/opt"},
		User:       "1:2",
		Labels:     map[string]string{"version": "1"},
		Files: []File{
			Symlink("/opt/bin/alias", "../run"),
			Program("/opt/run", sourceFile(t, "a program")),
			Dir("/tmp", 0o777|fs.ModeSticky),
			Text("/etc/passwd", "root:x:0:0::/:/bin/sh\n"),
		},
	}
}

// blobs checks that every entry below blobs is named by its digest, and returns all entries by name.
func blobs(t *testing.T, archive []entry) map[string]entry {
	t.Helper()
	byName := map[string]entry{}
	for _, e := range archive {
		if name, ok := strings.CutPrefix(e.Name, "blobs/sha256/"); ok && name != digest(e.Content) {
			t.Errorf("%s has the digest %s", e.Name, digest(e.Content))
		}
		byName[e.Name] = e
	}
	return byName
}

func decode[T any](t *testing.T, e entry) T {
	t.Helper()
	var value T
	if err := json.Unmarshal([]byte(e.Content), &value); err != nil {
		t.Fatalf("%s: %v: %q", e.Name, err, e.Content)
	}
	return value
}

// An archive is read as an OCI tool reads it, from its index on, and as an old docker does, from manifest.json on.
func TestArchive(t *testing.T) {
	i := example(t)
	archive := readTar(t, write(t, i))
	entries := blobs(t, archive)
	if len(archive) != 6 {
		t.Fatalf("got %d entries, want layer, configuration, manifest, index.json, manifest.json and oci-layout", len(archive))
	}
	if got := decode[map[string]string](t, entries["oci-layout"]); got["imageLayoutVersion"] != "1.0.0" {
		t.Errorf("oci-layout: got %v, want version 1.0.0", got)
	}
	at := func(d v1.Descriptor) entry {
		e := entries[blobPath(d.Digest)]
		if int64(len(e.Content)) != d.Size {
			t.Errorf("%s has %d bytes, but %d in a descriptor", e.Name, len(e.Content), d.Size)
		}
		return e
	}
	list := decode[v1.IndexManifest](t, entries["index.json"])
	if len(list.Manifests) != 1 {
		t.Fatalf("the index has %d manifests, want 1", len(list.Manifests))
	}
	if got := list.Manifests[0].Annotations[annotationContainerdName]; got != i.Ref {
		t.Errorf("reference in the index: got %q, want %q", got, i.Ref)
	}
	m := decode[v1.Manifest](t, at(list.Manifests[0]))
	if diff := cmp.Diff(i.Labels, m.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	layer, config := at(m.Layers[0]), at(m.Config)

	checkLayer(t, layer)
	checkConfig(t, config, layer)

	id, err := i.ID()
	if err != nil {
		t.Fatal(err)
	}
	if want := "sha256:" + digest(config.Content); id != want {
		t.Errorf("ID = %s, want the configuration's digest %s", id, want)
	}
	if size, err := i.Size(); err != nil || size != int64(len(layer.Content)) {
		t.Errorf("Size = %d, %v, want the layer's %d", size, err, len(layer.Content))
	}
	wantDocker := tarball.Manifest{{Config: config.Name, RepoTags: []string{i.Ref}, Layers: []string{layer.Name}}}
	if diff := cmp.Diff(wantDocker, decode[tarball.Manifest](t, entries["manifest.json"])); diff != "" {
		t.Errorf("docker's manifest (-want +got):\n%s", diff)
	}
}

func checkLayer(t *testing.T, layer entry) {
	t.Helper()
	want := []entry{
		{Name: "etc/", Kind: tar.TypeDir, Mode: 0o755},
		{Name: "etc/passwd", Kind: tar.TypeReg, Mode: 0o644, Content: "root:x:0:0::/:/bin/sh\n"},
		{Name: "opt/", Kind: tar.TypeDir, Mode: 0o755},
		{Name: "opt/bin/", Kind: tar.TypeDir, Mode: 0o755},
		{Name: "opt/bin/alias", Kind: tar.TypeSymlink, Mode: 0o777, Link: "../run"},
		{Name: "opt/run", Kind: tar.TypeReg, Mode: 0o755, Content: "a program"},
		{Name: "tmp/", Kind: tar.TypeDir, Mode: 0o1777},
	}
	if diff := cmp.Diff(want, readTar(t, []byte(layer.Content))); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func checkConfig(t *testing.T, config, layer entry) {
	t.Helper()
	want := map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"created":      "1970-01-01T00:00:00Z",
		"config": map[string]any{
			"User": "1:2", "Entrypoint": []any{"/opt/run"}, "Cmd": []any{"wait"}, "Env": []any{"PATH=/opt"}, "WorkingDir": "/",
			"Labels": map[string]any{"version": "1"},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []any{"sha256:" + digest(layer.Content)}},
		"history": []any{map[string]any{"created": "1970-01-01T00:00:00Z"}},
	}
	if diff := cmp.Diff(want, decode[map[string]any](t, config)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

// An archive is a valid OCI image layout (TestArchive compares the digest of its layer, which is not compressed), and a valid archive of docker.
func TestArchive_validates(t *testing.T) {
	i := example(t)
	archive, dir := write(t, i), t.TempDir()
	for _, e := range readTar(t, archive) {
		path := filepath.Join(dir, e.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(e.Content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(list, validate.Fast); err != nil {
		t.Errorf("OCI image layout: %v", err)
	}
	docker, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(docker); err != nil {
		t.Errorf("archive of docker: %v", err)
	}
	manifest, err := list.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := i.Digest(); err != nil || got != manifest.Manifests[0].Digest.String() {
		t.Errorf("Digest = %s, %v, want the manifest's %s", got, err, manifest.Manifests[0].Digest)
	}
}

func TestEqualImagesGiveEqualBytes(t *testing.T) {
	first, second := example(t), example(t)
	slices.Reverse(second.Files)
	for _, f := range second.Files {
		if f.Source != "" {
			if err := os.Chtimes(f.Source, time.Time{}, time.Unix(1e9, 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(write(t, first), write(t, second)) {
		t.Error("the order of the files or the time of a source changed the archive")
	}
}

func TestIDFollowsContent(t *testing.T) {
	changes := map[string]func(*Image){
		"file":       func(i *Image) { i.Files[3].Content = []byte("root:x:0:0::/:/bin/ash\n") },
		"mode":       func(i *Image) { i.Files[1].Mode = 0o700 },
		"target":     func(i *Image) { i.Files[0].Target = "/opt/run" },
		"entrypoint": func(i *Image) { i.Entrypoint = []string{"/opt/bin/alias"} },
		"command":    func(i *Image) { i.Cmd = nil },
		"setting":    func(i *Image) { i.Env = append(i.Env, "A=b") },
		"user":       func(i *Image) { i.User = "" },
		"label":      func(i *Image) { i.Labels["version"] = "2" },
	}
	want, err := example(t).ID()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			i := example(t)
			change(i)
			got, err := i.ID()
			if err != nil {
				t.Fatal(err)
			}
			if got == want {
				t.Error("the ID is still the same")
			}
		})
	}
}

func TestBadImages(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	tests := []struct {
		name  string
		image Image
		want  []string // in the error
	}{
		{"no reference", Image{}, []string{"set Ref"}},
		{"relative path", Image{Ref: "r", Files: []File{Text("etc/passwd", "")}}, []string{`"etc/passwd"`, "absolute"}},
		{"path out of the root", Image{Ref: "r", Files: []File{Text("/../etc/passwd", "")}}, []string{"clean"}},
		{"root", Image{Ref: "r", Files: []File{Dir("/", 0o755)}}, []string{"not the root"}},
		{"twice", Image{Ref: "r", Files: []File{Dir("/a", 0o755), Text("/a", "")}}, []string{"/a is given twice"}},
		{"below a file", Image{Ref: "r", Files: []File{Text("/a", ""), Text("/a/b/c", "")}}, []string{"/a/b/c lies below /a"}},
		{"device", Image{Ref: "r", Files: []File{{Path: "/null", Mode: fs.ModeDevice}}}, []string{"/null", "can't hold"}},
		{"link to nothing", Image{Ref: "r", Files: []File{Symlink("/a", "")}}, []string{"/a", "target"}},
		{"source is missing", Image{Ref: "r", Files: []File{Program("/a", absent)}}, []string{"image r: /a", absent}},
		{"source is a folder", Image{Ref: "r", Files: []File{Program("/a", t.TempDir())}}, []string{"no regular file"}},
		{"several", Image{Ref: "r", Files: []File{Text("a", ""), Symlink("/b", "")}}, []string{`"a"`, "/b"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.image.Write(io.Discard)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

// changingWriter rewrites a file when the archive's first bytes arrive, after the digest pass has read it.
type changingWriter struct {
	path string
	done bool
}

func (w *changingWriter) Write(p []byte) (int, error) {
	if !w.done {
		w.done = true
		if err := os.WriteFile(w.path, []byte("b program"), 0o600); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func TestSourceChangesDuringWrite(t *testing.T) {
	i := example(t)
	err := i.Write(&changingWriter{path: i.Files[1].Source})
	if err == nil || !strings.Contains(err.Error(), "changed while") {
		t.Errorf("error = %v, want one about a changed source", err)
	}
}

func TestEveryTreeSurvives(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`(/[a-z.-]{1,120}x){1,3}`), 0, 20, rapid.ID).Draw(t, "paths")
		i := &Image{Ref: "localhost/any:lab"}
		want := map[string]string{}
		for _, name := range names {
			content := rapid.String().Draw(t, "content")
			i.Files = append(i.Files, Text(name, content))
			want[strings.TrimPrefix(name, "/")] = content
		}
		var out bytes.Buffer
		if err := i.Write(&out); err != nil {
			if nested(names) {
				return
			}
			t.Fatal(err)
		}
		got, seen := map[string]string{}, map[string]bool{"./": true}
		for _, e := range readTar(t, []byte(readTar(t, out.Bytes())[0].Content)) {
			parent := filepath.Dir(strings.TrimSuffix(e.Name, "/")) + "/"
			if !seen[parent] {
				t.Fatalf("%s comes before its folder", e.Name)
			}
			if e.Kind == tar.TypeDir {
				seen[e.Name] = true
				continue
			}
			got[e.Name] = e.Content
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("files (-want +got):\n%s", diff)
		}
	})
}

// nested reports whether one path is below another.
func nested(paths []string) bool {
	for _, a := range paths {
		for _, b := range paths {
			if strings.HasPrefix(b, a+"/") {
				return true
			}
		}
	}
	return false
}
