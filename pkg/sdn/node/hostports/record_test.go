package hostports

import (
	"os"
	"path/filepath"
	"testing"
)

// A write that a crash interrupted is no record.
func TestRecords_interruptedWrite(t *testing.T) {
	d, r := records(t.TempDir()), record{Attachment: Attachment{"s1", "eth0"}}
	must(t, os.WriteFile(filepath.Join(string(d), "."+filepath.Base(d.path(r.Attachment))+".tmp"), []byte("{"), 0o600))
	if all, err := d.list(); err != nil || len(all) > 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
	must(t, d.write(r))
	if files, err := os.ReadDir(string(d)); err != nil || len(files) != 1 {
		t.Errorf("got files %v, %v, want the record only", files, err)
	}
}

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
