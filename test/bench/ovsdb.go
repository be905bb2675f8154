package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ovsdb is the least that can add a port: it writes bytes to the database's socket and reads those that come back. What it takes
// is what Open vSwitch takes (RFC 7047).
type ovsdb struct {
	conn   net.Conn
	answer *json.Decoder
	bridge string // UUID of br0
	id     int
}

func dialOVSDB(socket, bridge string) (*ovsdb, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	d := &ovsdb{conn: conn, answer: json.NewDecoder(conn), bridge: bridge}
	if _, err := d.call("monitor", `["Open_vSwitch",1,{"Interface":[{"columns":["ofport","error"],"select":{"initial":false,"insert":false,"delete":false}}]}]`); err != nil {
		conn.Close()
		return nil, err
	}
	return d, nil
}

// message is what comes from the server, an answer or a notification.
type message struct {
	Method string
	Params []json.RawMessage
	ID     json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
}

// call returns the answer; notifications before it are of no interest.
func (d *ovsdb) call(method, params string) (json.RawMessage, error) {
	d.id++
	if _, err := fmt.Fprintf(d.conn, `{"method":%q,"params":%s,"id":%d}`, method, params, d.id); err != nil {
		return nil, err
	}
	for {
		var m message
		if err := d.answer.Decode(&m); err != nil {
			return nil, err
		}
		if string(m.ID) != strconv.Itoa(d.id) {
			continue
		}
		if len(m.Error) > 0 && string(m.Error) != "null" {
			return nil, fmt.Errorf("%s: %s", method, m.Error)
		}
		return m.Result, nil
	}
}

// transact returns the UUIDs of the rows that the operations inserted, "" for other operations.
func (d *ovsdb) transact(operations ...string) ([]string, error) {
	answer, err := d.call("transact", `["Open_vSwitch",`+strings.Join(operations, ",")+`]`)
	if err != nil {
		return nil, err
	}
	var results []struct {
		UUID    [2]string `json:"uuid"`
		Error   string    `json:"error"`
		Details string    `json:"details"`
	}
	if err := json.Unmarshal(answer, &results); err != nil {
		return nil, err
	}
	var inserted []string
	for _, r := range results {
		if r.Error != "" {
			return nil, fmt.Errorf("transact: %s: %s", r.Error, r.Details)
		}
		inserted = append(inserted, r.UUID[1])
	}
	return inserted, nil
}

// added is a port that the database has taken.
type added struct{ port, iface string } // UUIDs

func (d *ovsdb) addPort(name string) (added, error) {
	inserted, err := d.transact(
		fmt.Sprintf(`{"op":"insert","table":"Interface","row":{"name":%q},"uuid-name":"i"}`, name),
		fmt.Sprintf(`{"op":"insert","table":"Port","row":{"name":%q,"interfaces":["named-uuid","i"]},"uuid-name":"p"}`, name),
		d.mutatePorts("insert", `["named-uuid","p"]`))
	if err != nil {
		return added{}, err
	}
	return added{iface: inserted[0], port: inserted[1]}, nil
}

// ofport waits for vswitchd to number the port.
func (d *ovsdb) ofport(a added) (int, error) {
	for {
		var m message
		if err := d.answer.Decode(&m); err != nil {
			return 0, err
		}
		if m.Method != "update" || len(m.Params) != 2 {
			continue
		}
		var update struct {
			Interface map[string]struct {
				New struct {
					OFPort json.RawMessage `json:"ofport"` // a number, or ["set",[]]
					Error  json.RawMessage `json:"error"`
				} `json:"new"`
			}
		}
		if err := json.Unmarshal(m.Params[1], &update); err != nil {
			return 0, err
		}
		changed, ok := update.Interface[a.iface]
		if !ok {
			continue
		}
		n, err := strconv.Atoi(string(changed.New.OFPort))
		switch {
		case err == nil && n > 0:
			return n, nil
		case err == nil:
			return 0, errors.New(string(changed.New.Error))
		}
	}
}

// deletePort does not wait for vswitchd.
func (d *ovsdb) deletePort(a added) error {
	_, err := d.transact(d.mutatePorts("delete", fmt.Sprintf(`["uuid",%q]`, a.port)))
	return err
}

func (d *ovsdb) mutatePorts(mutator, port string) string {
	return fmt.Sprintf(`{"op":"mutate","table":"Bridge","where":[["_uuid","==",["uuid",%q]]],"mutations":[["ports",%q,%s]]}`, d.bridge, mutator, port)
}
