package ovs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Key identifies a flow on the switch: adding a flow replaces the flow with an equal key. It is comparable.
type Key struct {
	Table    int
	Priority int
	Match    string // canonical, as Open vSwitch prints it; "" matches every packet
}

// String returns the key in the syntax of a strict delete of ovs-ofctl.
func (k Key) String() string {
	separator := ""
	if k.Match != "" {
		separator = ","
	}
	return "table=" + strconv.Itoa(k.Table) + ",priority=" + strconv.Itoa(k.Priority) + separator + k.Match
}

// FlowKey returns the flow's key. Equivalent matches have equal keys, whatever their order of fields, aliases (dl_type=0x0800 and ip),
// number bases, host bits and full masks. A match that Open vSwitch would silently widen (an address without its protocol, a field with
// two values) and an unknown field are errors.
func FlowKey(f *Flow) (Key, error) {
	k := Key{Table: f.Table, Priority: f.Priority}
	text, err := matchText(f)
	if err != nil {
		return k, err
	}
	if k.Match, err = openflow.MatchText(text); err != nil {
		return k, flowError(f, err)
	}
	return k, nil
}

// flowError identifies the flow, of which the match is not known.
func flowError(f *Flow, err error) error {
	return fmt.Errorf("flow %s: %w", Key{Table: f.Table, Priority: f.Priority}, err)
}

func checkNumbers(f *Flow) error {
	if f.Table < 0 || f.Table > maxTable {
		return fmt.Errorf("flow: table %d is not in the range 0 to %d", f.Table, maxTable)
	}
	if f.Priority < 0 || f.Priority > maxPriority {
		return fmt.Errorf("flow: priority %d is not in the range 0 to %d", f.Priority, maxPriority)
	}
	if f.IdleTimeout < 0 || f.IdleTimeout > maxTimeout {
		return fmt.Errorf("flow: idle_timeout %d is not in the range 0 to %d", f.IdleTimeout, maxTimeout)
	}
	return nil
}

// FlowText returns the flow in the syntax of ovs-ofctl, with its match in canonical form.
func FlowText(f *Flow) (string, error) {
	_, text, err := flowText(f)
	return text, err
}

func flowText(f *Flow) (Key, string, error) {
	k, err := FlowKey(f)
	if err != nil {
		return k, "", err
	}
	rest, err := suffixText(f)
	return k, k.String() + rest, err
}

// suffixText returns the part of a flow's text that follows the match.
func suffixText(f *Flow) (string, error) {
	actions, err := ActionsText(f)
	if err != nil {
		return "", err
	}
	var s string
	if f.IdleTimeout != 0 {
		s += ",idle_timeout=" + strconv.Itoa(f.IdleTimeout)
	}
	if f.Cookie != 0 {
		s += ",cookie=0x" + strconv.FormatUint(f.Cookie, 16)
	}
	return s + ",actions=" + actions, nil
}

// ActionsText returns the flow's actions in the syntax of ovs-ofctl.
func ActionsText(f *Flow) (string, error) {
	text, err := actionList(f.Actions)
	if err != nil {
		return "", flowError(f, err)
	}
	return text, nil
}

func actionList(actions []Action) (string, error) {
	if len(actions) == 0 {
		return "", errors.New("no actions; write drop to drop packets")
	}
	texts := make([]string, len(actions))
	for i, a := range actions {
		b, err := a.MarshalText()
		if err != nil {
			return "", fmt.Errorf("action %d: %w", i+1, err)
		}
		texts[i] = string(b)
		if texts[i] == "drop" && len(actions) > 1 {
			return "", errors.New("drop cannot be combined with other actions")
		}
	}
	return strings.Join(texts, ","), nil
}

// DumpedFlow is a flow in a dump of the switch.
type DumpedFlow struct {
	Key     Key
	Text    string // see FlowText
	Cookie  uint64
	Packets uint64
	Bytes   uint64
}

// Actions returns the actions, as Open vSwitch prints them.
func (f DumpedFlow) Actions() string {
	_, actions, _ := strings.Cut(f.Text, ",actions=")
	return actions
}
