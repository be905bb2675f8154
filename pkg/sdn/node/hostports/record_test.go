package hostports

import (
	"os"
	"testing"
)

// A record that can't be stored leaves no file.
func TestRecords_failedWrite(t *testing.T) {
	d, r := records(t.TempDir()), record{Attachment: Attachment{"s1", "eth0"}}
	must(t, os.Mkdir(d.path(r.Attachment), 0o700))
	if err := d.write(r); err == nil {
		t.Error("got no error")
	}
	if files, err := os.ReadDir(string(d)); err != nil || len(files) != 1 {
		t.Errorf("got files %v (%v), want the directory only", files, err)
	}
}
