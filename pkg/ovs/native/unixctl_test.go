package native

import (
	"bufio"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func readReply(reply string) (lines []string, err error) {
	// A small buffer makes the reader return a line in several parts.
	r := replyReader{Reader: bufio.NewReaderSize(strings.NewReader(reply), 16)}
	err = r.read(func(line []byte) { lines = append(lines, string(line)) })
	return lines, err
}

func TestReplyReader(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for reply, want := range map[string][]string{
		`{"id":0,"result":"one\ntwo\n","error":null}`:                                {"one", "two"},
		`{"error":null,"id":0,"result":"no end"}`:                                    {"no end"},
		` { "result" : "` + long + `\n` + long + `" , "id" : 12 , "error" : null } `: {long, long},
		`{"result":"","id":0}`:                                                       nil,
		`{"result":"\n\na","id":0}`:                                                  {"", "", "a"},
		`{"result":"\"\\\/\b\f\r\t\u00e9\u0001"}`:                                    {"\"\\/\b\f\r\té\x01"},
		`{"id":"other","result":"é"}`:                                                {"é"},
	} {
		got, err := readReply(reply)
		if err != nil {
			t.Errorf("%s: got error %v, want none", reply, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reply, diff)
		}
	}
	for _, reply := range []string{
		``, `{`, `{"result"`, `{"result":"a`, `{"result":"a\`, `{"result":"a\u00`, `{"result":"a"`, `{"result":"a";`, `{"result":"\x"}`,
		`{"result":"\u00gg"}`, `{"result":{}}`, `{"result":["a"]}`, `{"id":1}`, `[]`, `"text"`, `{"result":null,"error":null}`,
		`{"result":"` + strings.Repeat("x", maxLine+1) + `"}`,
	} {
		if got, err := readReply(reply); err == nil {
			t.Errorf("%.40s: got %q, want an error", reply, got)
		}
	}
	var rejected *commandError
	if _, err := readReply(`{"result":null,"error":"no such datapath\n(No such device)\n","id":0}`); !errors.As(err, &rejected) || rejected.reason != "no such datapath; (No such device)" {
		t.Errorf("got %v, want a commandError with the reason of vswitchd", err)
	}
}

// Replies follow each other, also one with an error.
func TestReplyReader_several(t *testing.T) {
	r := replyReader{Reader: bufio.NewReaderSize(strings.NewReader(`{"id":0,"result":"one","error":null}{"error":"no\n","id":1,"result":null}`+"\n"+`{"result":"two","id":2}`), 16)}
	var got []string
	for range 3 {
		err := r.read(func(line []byte) { got = append(got, string(line)) })
		if err != nil {
			got = append(got, err.Error())
		}
	}
	if diff := cmp.Diff([]string{"one", "vswitchd: no", "two"}, got); diff != "" {
		t.Errorf("replies (-want +got):\n%s", diff)
	}
}

func FuzzReplyReader(f *testing.F) {
	f.Add(`{"id":0,"result":"one\ntwo\n","error":null}`)
	f.Add(`{"id":0,"result":null,"error":"\u00e9"}`)
	f.Fuzz(func(_ *testing.T, reply string) { _, _ = readReply(reply) })
}

// The texts are those of ovs-vswitchd 3.1 for the kernel's datapath.
func TestDatapathStats_parse(t *testing.T) {
	var got DatapathStats
	for line := range strings.Lines(`system@ovs-system:
  lookups: hit:120 missed:31 lost:2
  flows: 17
  masks: hit:300 total:5 hit/pkt:1.99
  cache: hit:90 hit-rate:59.60%
  caches:
    masks-cache: size:256
  port 0: ovs-system (internal)
  port 1: vxlan_sys_4789 (vxlan: packet_type=ptap)
`) {
		if _, err := got.parse(line); err != nil {
			t.Errorf("%q: got error %v, want none", line, err)
		}
	}
	if want := (DatapathStats{Hit: 120, Missed: 31, Lost: 2, Flows: 17, Masks: 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, line := range []string{"lookups: hit:x missed:1", "flows: many", "masks: total:-1"} {
		if _, err := got.parse(line); err == nil {
			t.Errorf("%q: got no error, want one", line)
		}
	}
}
