package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/ovsdn/ovsdn/pkg/pcapng"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const capturesPath = diagnosticsPath + "/namespaces/shop/captures/web/attach"

// captured returns a file with packets and an end; without a comment it has none.
func captured(t *testing.T, packets int, dropped uint64, comment string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapng.NewWriter(&b, pcapng.Interface{Name: "pod/shop/web", SnapLength: 256})
	for i := range packets {
		if err == nil {
			err = w.WritePacket(pcapng.Packet{Time: time.Unix(int64(i), 0), Length: 60, Data: make([]byte, 60)})
		}
	}
	if err == nil && comment != "" {
		err = w.WriteStatistics(pcapng.Statistics{Dropped: dropped, Comment: comment})
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// streams answers with the content, and breaks off after it if it is not complete.
func streams(content []byte, isComplete bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", diagnostics.ContentTypePcapng)
		_, _ = w.Write(content)
		_ = http.NewResponseController(w).Flush()
		if !isComplete {
			panic(http.ErrAbortHandler)
		}
	}
}

func TestCapture(t *testing.T) {
	whole := captured(t, 2, 0, diagnostics.CaptureEndDuration.Comment("the capture has lasted 30s"))
	half := captured(t, 2, 0, "")
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		code   int
		want   []byte
		errOut string
	}{
		"complete": {streams(whole, true), exitOK, whole, "Captured 2 packets of pod/shop/web: DurationReached: the capture has lasted 30s\n"},
		"by its number": {
			streams(captured(t, 1, 7, diagnostics.CaptureEndPackets.Comment("x")), true), exitOK, captured(t, 1, 7, diagnostics.CaptureEndPackets.Comment("x")),
			"Captured 1 packet of pod/shop/web; 7 more were dropped because they were read too slowly: use a filter, or a smaller --snap-length: PacketLimitReached: x\n",
		},
		"pod deleted": {
			streams(captured(t, 0, 0, diagnostics.CaptureEndInterface.Comment("deleted\x1b[2J")), true), exitFailed, captured(t, 0, 0, diagnostics.CaptureEndInterface.Comment("deleted\x1b[2J")),
			`Captured 0 packets of pod/shop/web: InterfaceRemoved: "deleted\x1b[2J"` + "\n",
		},
		"a comment that is no end": {
			streams(captured(t, 2, 0, "\x1b]52;c;x\x07: x"), true), exitFailed, captured(t, 2, 0, "\x1b]52;c;x\x07: x"),
			"the capture ended early, after 2 packets of pod/shop/web, which were written: unexpected EOF",
		},
		"without an end":   {streams(half, true), exitFailed, half, "the capture ended early, after 2 packets of pod/shop/web, which were written: unexpected EOF"},
		"broken off":       {streams(half, false), exitFailed, half, "the capture ended early, after 2 packets of pod/shop/web, which were written: "},
		"half a packet":    {streams(half[:len(half)-3], false), exitFailed, captured(t, 1, 0, ""), "ended early, after 1 packet of pod/shop/web, "},
		"an end, and more": {streams(append(bytes.Clone(whole), half[len(half)-104:]...), true), exitFailed, append(bytes.Clone(whole), half[len(half)-104:]...), "ended early, after 3 packets"},
		"no file":          {streams([]byte("<html>no file, but the page of a proxy"), true), exitFailed, nil, "invalid pcapng file"},
	} {
		api := newFakeAPI(t, map[string]any{capturesPath: tc.answer})
		code, out, errOut := api.run(t.Context(), "capture", "pod/shop/web")
		if code != tc.code || tc.want != nil && out != string(tc.want) || !strings.Contains(errOut, tc.errOut) {
			t.Errorf("%s: got exit code %d, want %d; %d bytes, want %d; error output %q, want %q", name, code, tc.code, len(out), len(tc.want), errOut, tc.errOut)
		}
		file := filepath.Join(t.TempDir(), "f")
		if code, out, _ := api.run(t.Context(), "capture", "pod/shop/web", "-w", file); code != tc.code || out != "" {
			t.Errorf("%s with -w: got exit code %d, want %d; output %q", name, code, tc.code, out)
		}
		info, err := os.Stat(file)
		if tc.want == nil {
			continue
		}
		if content, readErr := os.ReadFile(file); err != nil || readErr != nil || !bytes.Equal(content, tc.want) || info.Mode() != 0o600 {
			t.Errorf("%s with -w: got %d bytes, want %d; errors %v, %v", name, len(content), len(tc.want), err, readErr)
		}
	}
}

// A file that exists is not changed, and a capture that does not begin leaves none.
func TestCapture_files(t *testing.T) {
	api := newFakeAPI(t, map[string]any{capturesPath: metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: `User "u" cannot create resource "captures/attach"`}})
	file := filepath.Join(t.TempDir(), "f")
	api.wants(t, exitFailed, "", `User "u" cannot create resource "captures/attach"`, "capture", "pod/shop/web", "-w", file)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("got %v, want no file", err)
	}
	if err := os.WriteFile(file, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	api.wants(t, exitFailed, "", "exists; name another file with -w", "capture", "pod/shop/web", "-w", file)
	if content, err := os.ReadFile(file); string(content) != "other" {
		t.Errorf("got %q, error %v", content, err)
	}
}

// An interrupted capture leaves what was received.
func TestCapture_interrupted(t *testing.T) {
	half := captured(t, 2, 0, "")
	ctx, interrupt := context.WithCancel(t.Context())
	api := newFakeAPI(t, map[string]any{capturesPath: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		streams(half, true)(w, r)
		interrupt()
		<-r.Context().Done()
	})})
	file := filepath.Join(t.TempDir(), "f")
	code, _, errOut := api.run(ctx, "capture", "pod/shop/web", "-w", file)
	content, err := os.ReadFile(file)
	isPart := bytes.HasPrefix(half, content) || os.IsNotExist(err) // the interruption can precede the file
	if code != exitFailed || !isPart || !strings.Contains(errOut, "interrupted") && !strings.Contains(errOut, "canceled") {
		t.Errorf("got exit code %d, %q, %d bytes", code, errOut, len(content))
	}
}

func TestCapture_requests(t *testing.T) {
	api := newFakeAPI(t, map[string]any{capturesPath: streams(captured(t, 0, 0, diagnostics.CaptureEndDuration.Comment("x")), true)})
	for args, want := range map[string]string{
		"pod/shop/web":    `{"durationSeconds":30,"maxBytes":16777216,"snapLength":256}`,
		"pod/web -n shop": `{"durationSeconds":30,"maxBytes":16777216,"snapLength":256}`,
		"pod/shop/web -w - --duration 10m --max-bytes 256Mi --count 5 --snap-length 65535 --protocol tcp --port 80 --host 10.0.0.0/8": `{"durationSeconds":600,"maxBytes":268435456,"maxPackets":5,"snapLength":65535,"protocol":"TCP","port":80,"host":"10.0.0.0/8"}`,
	} {
		code, _, errOut := api.run(t.Context(), append([]string{"capture"}, strings.Fields(args)...)...)
		var sent struct{ Spec json.RawMessage }
		if err := json.Unmarshal(api.body.Load().([]byte), &sent); err != nil || string(sent.Spec) != want || code != exitOK {
			t.Errorf("%s: got exit code %d, %s, spec %s, want %s", args, code, errOut, sent.Spec, want)
		}
	}
	for _, args := range []string{
		"", "pod/shop/web pod/shop/db", "node/node1", "10.0.0.1", "pod/shop/web --duration 11m", "pod/shop/web --duration 1500ms", "pod/shop/web --max-bytes 1Gi", "pod/shop/web --max-bytes 1",
		"pod/shop/web --max-bytes many", "pod/shop/web --count -1", "pod/shop/web --snap-length 10", "pod/shop/web --protocol gre", "pod/shop/web --protocol icmp --port 1", "pod/shop/web --host web",
	} {
		flag, _, _ := strings.Cut(args[max(strings.LastIndex(args, "--"), 0):], " ") // the last one is invalid
		if !strings.HasPrefix(flag, "--") {
			flag = ""
		}
		if code, _, errOut := api.run(t.Context(), append([]string{"capture"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(errOut, "--help") || !strings.Contains(errOut, flag+": ") {
			t.Errorf("%s: got exit code %d, %q, want a usage error of %q", args, code, errOut, flag)
		}
	}
}

// A terminal gets no binary file.
func TestCapture_terminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	for _, args := range [][]string{nil, {"-w", "-"}} {
		var errOut bytes.Buffer
		code := run(t.Context(), append([]string{"--server=http://192.0.2.1:1", "--kubeconfig=/dev/null", "capture", "pod/shop/web"}, args...), genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: terminal, ErrOut: &errOut})
		if code != exitUsage || !strings.Contains(errOut.String(), "-w FILE") {
			t.Errorf("%v: got exit code %d, %q", args, code, errOut.String())
		}
	}
}
