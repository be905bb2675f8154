package ovs

import (
	"errors"
	"strconv"
	"strings"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
)

// matchText returns the match as written. It also checks the numbers of the flow.
func matchText(f *Flow) (string, error) {
	if err := checkNumbers(f); err != nil {
		return "", err
	}
	var b strings.Builder
	b.Grow(96)
	b.WriteString(string(f.Protocol))
	switch f.InPort {
	case 0:
	case goovs.PortLOCAL:
		b.WriteString(",in_port=LOCAL")
	default:
		b.WriteString(",in_port=")
		b.WriteString(strconv.Itoa(f.InPort))
	}
	for _, m := range f.Matches {
		text, err := m.MarshalText()
		if err == nil && len(text) == 0 {
			err = errors.New("a match has no text")
		}
		if err != nil {
			return "", flowError(f, err)
		}
		b.WriteByte(',')
		b.Write(text)
	}
	return strings.TrimPrefix(b.String(), ","), nil
}
