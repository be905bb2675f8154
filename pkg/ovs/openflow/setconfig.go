package openflow

// FragNXMatch in SetConfig.Flags: matches on ports apply to the first fragment of a packet and never to later ones (OFPC_FRAG_NX_MATCH in
// Open vSwitch's openflow-common.h).
const FragNXMatch = 3

// SetConfig sets the configuration of the switch (OpenFlow 1.4.1, 7.3.2).
type SetConfig struct {
	Flags       uint16 // FragNXMatch
	MissSendLen uint16 // maximum bytes of a packet in a packet-in
}

func (*SetConfig) messageType() uint8 { return typeSetConfig }

func (m *SetConfig) appendBody(b []byte) ([]byte, error) {
	return put16(put16(b, m.Flags), m.MissSendLen), nil
}

func decodeSetConfig(b []byte) (Message, error) {
	if len(b) < 4 {
		return nil, short("switch configuration", len(b), 4)
	}
	return &SetConfig{Flags: u16(b), MissSendLen: u16(b[2:])}, nil
}
