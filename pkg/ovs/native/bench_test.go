package native_test

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// rawDB adds ports with a minimum of code: it writes requests to the database's socket and reads the replies. Its time is that of
// Open vSwitch itself.
type rawDB struct {
	t      testing.TB
	conn   net.Conn
	answer *json.Decoder
	bridge string // UUID
	root   string
	id     int
}

func newRawDB(t testing.TB, s *ovstest.Switch) *rawDB {
	conn, err := net.Dial("unix", filepath.Join(s.RunDir, "db.sock"))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	r := &rawDB{
		t: t, conn: conn, answer: json.NewDecoder(conn),
		bridge: strings.TrimSpace(s.VSCtl(t, "get", "bridge", ovstest.Bridge, "_uuid")),
		root:   strings.TrimSpace(s.VSCtl(t, "get", "open_vswitch", ".", "_uuid")),
	}
	r.call("monitor_cond", `["Open_vSwitch",1,{"Interface":[{"columns":["ofport","error"],"select":{"initial":false}}],"Open_vSwitch":[{"columns":["cur_cfg"],"select":{"initial":false}}]}]`)
	return r
}

type rawMessage struct {
	Method string
	Params json.RawMessage
	ID     json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
}

func (r *rawDB) send(method, params string) {
	r.id++
	_, err := fmt.Fprintf(r.conn, `{"method":%q,"params":%s,"id":%d}`, method, params, r.id)
	must(r.t, err)
}

func (r *rawDB) next() rawMessage {
	var m rawMessage
	must(r.t, r.answer.Decode(&m))
	return m
}

// call returns the reply and discards updates before it.
func (r *rawDB) call(method, params string) rawMessage {
	r.send(method, params)
	for {
		if m := r.next(); string(m.ID) == fmt.Sprint(r.id) {
			return m
		}
	}
}

func (r *rawDB) transact(ops string) []map[string]json.RawMessage {
	m := r.call("transact", `["Open_vSwitch",`+ops+`]`)
	var results []map[string]json.RawMessage
	must(r.t, json.Unmarshal(m.Result, &results))
	return results
}

func (r *rawDB) uuid(result map[string]json.RawMessage) string {
	var pair [2]string
	must(r.t, json.Unmarshal(result["uuid"], &pair))
	return pair[1]
}

// addPort returns the port's UUID after vswitchd has assigned it a number.
func (r *rawDB) addPort(name string) string {
	results := r.transact(fmt.Sprintf(`{"op":"insert","table":"Interface","row":{"name":%q},"uuid-name":"i"},`+
		`{"op":"insert","table":"Port","row":{"name":%q,"interfaces":["named-uuid","i"]},"uuid-name":"p"},`+
		`{"op":"mutate","table":"Bridge","where":[["_uuid","==",["uuid",%q]]],"mutations":[["ports","insert",["named-uuid","p"]]]}`, name, name, r.bridge))
	iface := r.uuid(results[0])
	for {
		if m := r.next(); m.Method == "update2" && strings.Contains(string(m.Params), iface) && strings.Contains(string(m.Params), `"ofport"`) {
			return r.uuid(results[1])
		}
	}
}

// deletePort returns after vswitchd has closed the port.
func (r *rawDB) deletePort(uuid string) {
	results := r.transact(fmt.Sprintf(`{"op":"mutate","table":"Bridge","where":[["_uuid","==",["uuid",%q]]],"mutations":[["ports","delete",["uuid",%q]]]},`+
		`{"op":"mutate","table":"Open_vSwitch","where":[],"mutations":[["next_cfg","+=",1]]},{"op":"select","table":"Open_vSwitch","where":[],"columns":["next_cfg"]}`, r.bridge, uuid))
	var rows []struct {
		NextCfg int `json:"next_cfg"`
	}
	must(r.t, json.Unmarshal(results[2]["rows"], &rows))
	for {
		m := r.next()
		var params []json.RawMessage
		must(r.t, json.Unmarshal(m.Params, &params))
		var update struct {
			Root map[string]struct {
				Modify struct {
					CurCfg int `json:"cur_cfg"`
				} `json:"modify"`
			} `json:"Open_vSwitch"`
		}
		must(r.t, json.Unmarshal(params[1], &update))
		if update.Root[r.root].Modify.CurCfg >= rows[0].NextCfg {
			return
		}
	}
}

func names(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(prefix, i)
	}
	return names
}

func addAll(t testing.TB, n ovs.Interface, names []string) time.Duration {
	start := time.Now()
	var adds sync.WaitGroup
	for _, name := range names {
		adds.Go(func() {
			if _, err := n.AddPort(t.Context(), ovs.Port{Name: name}); err != nil {
				t.Error(err)
			}
		})
	}
	adds.Wait()
	return time.Since(start)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkAddPort measures AddPort and rawDB, the lower bound, alternately.
func BenchmarkAddPort(b *testing.B) {
	for _, present := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("present=%d", present), func(b *testing.B) {
			s := ovstest.Start(b)
			n := newNative(b, s)
			must(b, n.EnsureBridge(b.Context(), bridge()))
			old := names("o", present)
			addVeths(b, s, old...)
			addVeths(b, s, "new")
			addAll(b, n, old)
			raw := newRawDB(b, s)
			var native, floor []time.Duration
			for b.Loop() {
				start := time.Now()
				uuid := raw.addPort("new")
				floor = append(floor, time.Since(start))
				raw.deletePort(uuid)

				start = time.Now()
				_, err := n.AddPort(b.Context(), ovs.Port{Name: "new"})
				native = append(native, time.Since(start))
				must(b, err)
				must(b, n.DeletePort(b.Context(), "new"))
				raw.deletePort(uuid) // no change, waits for vswitchd
			}
			report(b, map[string][]time.Duration{"floor": floor, "native": native})
			b.ReportMetric(float64(median(native))/float64(median(floor)), "x-floor")
		})
	}
}

// BenchmarkAddPorts adds 16 ports concurrently to existing ones; vswitchd processes them together.
func BenchmarkAddPorts(b *testing.B) {
	const together = 16
	for _, present := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("present=%d", present), func(b *testing.B) {
			s, n := startNative(b)
			old, fresh := names("o", present), names("n", together)
			addVeths(b, s, slices.Concat(old, fresh)...)
			addAll(b, n, old)
			raw := newRawDB(b, s)
			var all, one []time.Duration
			for b.Loop() {
				all = append(all, addAll(b, n, fresh))
				for _, name := range fresh {
					must(b, n.DeletePort(b.Context(), name))
				}
				raw.deletePort(raw.root) // no change, waits for vswitchd
				one = append(one, addAll(b, n, fresh[:1]))
				must(b, n.DeletePort(b.Context(), fresh[0]))
				raw.deletePort(raw.root)
			}
			report(b, map[string][]time.Duration{"16-at-once": all, "one": one})
			b.ReportMetric(float64(together)/median(all).Seconds(), "ports/s")
			b.ReportMetric(float64(median(all))/float64(median(one)), "x-one")
		})
	}
}

func BenchmarkListPorts(b *testing.B) {
	s, n := startNative(b)
	old := names("o", 500)
	addVeths(b, s, old...)
	addAll(b, n, old)
	for b.Loop() {
		_, err := n.ListPorts(b.Context())
		must(b, err)
	}
}
