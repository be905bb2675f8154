package openflow

// MeterConfigRequest requests the configuration of meters.
type MeterConfigRequest struct {
	Meter uint32 // or AllMeters
}

// MeterConfigReply is one message of a dump of meters.
type MeterConfigReply struct {
	Part
	Meters []Meter
}

func (*MeterConfigRequest) messageType() uint8 { return typeMultipart }

func (m *MeterConfigRequest) appendBody(b []byte) ([]byte, error) {
	return zeros(put32(appendRequest(b, multipartMeterConfig), m.Meter), 4), nil
}

func (m *MeterConfigReply) appendBody(b []byte) ([]byte, error) {
	b = m.append(b, multipartMeterConfig)
	for i := range m.Meters {
		start := len(b)
		b = put32(put16(zeros(b, 2), uint16(m.Meters[i].Flags)), m.Meters[i].ID)
		b = m.Meters[i].appendBands(b)
		if err := putLength(b, start, start); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeMeterConfigReply(p Part, b []byte) (Message, error) {
	const fixed = 8
	m := &MeterConfigReply{Part: p}
	err := entries("meter configuration", b, 0, fixed, func(e []byte) error {
		meter := Meter{Flags: MeterFlags(u16(e[2:])), ID: u32(e[4:])}
		if err := meter.decodeBands(e[fixed:]); err != nil {
			return err
		}
		m.Meters = append(m.Meters, meter)
		return nil
	})
	return m, err
}
