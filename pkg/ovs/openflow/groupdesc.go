package openflow

// GroupDescRequest requests the descriptions of all groups.
type GroupDescRequest struct{}

// GroupDescReply is one message of a dump of groups.
type GroupDescReply struct {
	Part
	Groups []Group
}

func (*GroupDescRequest) messageType() uint8 { return typeMultipart }

func (*GroupDescRequest) appendBody(b []byte) ([]byte, error) {
	return appendRequest(b, multipartGroupDesc), nil
}

func (m *GroupDescReply) appendBody(b []byte) ([]byte, error) {
	b = m.append(b, multipartGroupDesc)
	for i := range m.Groups {
		start := len(b)
		b = put32(append(zeros(b, 2), byte(m.Groups[i].Type), 0), m.Groups[i].ID)
		var err error
		if b, err = m.Groups[i].appendBuckets(b); err != nil {
			return b, err
		}
		if err = putLength(b, start, start); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeGroupDescReply(p Part, b []byte) (Message, error) {
	const fixed = 8
	m := &GroupDescReply{Part: p}
	err := entries("group description", b, 0, fixed, func(e []byte) error {
		g := Group{Type: GroupType(e[2]), ID: u32(e[4:])}
		if err := g.decodeBuckets(e[fixed:]); err != nil {
			return err
		}
		m.Groups = append(m.Groups, g)
		return nil
	})
	return m, err
}
