package openflow

// FeaturesRequest asks for FeaturesReply.
type FeaturesRequest struct{}

// FeaturesReply says what the switch is (OpenFlow 1.4.1, 7.3.1).
type FeaturesReply struct {
	DatapathID   uint64
	Buffers      uint32 // packets that the switch can keep for a controller
	Tables       uint8
	AuxiliaryID  uint8
	Capabilities uint32 // OFPC_*
}

func (*FeaturesRequest) messageType() uint8 { return typeFeaturesRequest }
func (*FeaturesReply) messageType() uint8   { return typeFeaturesReply }

func (*FeaturesRequest) appendBody(b []byte, _ Version) ([]byte, error) { return b, nil }

func (m *FeaturesReply) appendBody(b []byte, _ Version) ([]byte, error) {
	b = put64(b, m.DatapathID)
	b = put32(b, m.Buffers)
	b = append(b, m.Tables, m.AuxiliaryID, 0, 0)
	b = put32(b, m.Capabilities)
	return put32(b, 0), nil // reserved
}

func decodeFeaturesReply(b []byte) (Message, error) {
	if len(b) < 24 {
		return nil, short("features reply", len(b), 24)
	}
	return &FeaturesReply{DatapathID: u64(b), Buffers: u32(b[8:]), Tables: b[12], AuxiliaryID: b[13], Capabilities: u32(b[16:])}, nil
}

// Flags of the switch's configuration: what a fragment's ports are taken for.
const (
	FragNormal  = 0 // none, the first fragment's too
	FragDrop    = 1
	FragNXMatch = 3 // what the first one says, and none in others (OFPC_FRAG_NX_MATCH in Open vSwitch's openflow-common.h)
)

// GetConfigRequest asks for GetConfigReply.
type GetConfigRequest struct{}

// GetConfigReply is the switch's configuration (OpenFlow 1.4.1, 7.3.2).
type GetConfigReply struct {
	Flags       uint16 // FragNormal …
	MissSendLen uint16 // bytes of a packet that a packet-in carries
}

// SetConfig sets what GetConfigReply shows.
type SetConfig struct {
	Flags       uint16
	MissSendLen uint16
}

func (*GetConfigRequest) messageType() uint8 { return typeGetConfig }
func (*GetConfigReply) messageType() uint8   { return typeGetConfigReply }
func (*SetConfig) messageType() uint8        { return typeSetConfig }

func (*GetConfigRequest) appendBody(b []byte, _ Version) ([]byte, error) { return b, nil }

func (m *GetConfigReply) appendBody(b []byte, _ Version) ([]byte, error) {
	return put16(put16(b, m.Flags), m.MissSendLen), nil
}

func (m *SetConfig) appendBody(b []byte, _ Version) ([]byte, error) {
	return put16(put16(b, m.Flags), m.MissSendLen), nil
}

func decodeConfig(typ uint8, b []byte) (Message, error) {
	if len(b) < 4 {
		return nil, short("switch configuration", len(b), 4)
	}
	if typ == typeSetConfig {
		return &SetConfig{Flags: u16(b), MissSendLen: u16(b[2:])}, nil
	}
	return &GetConfigReply{Flags: u16(b), MissSendLen: u16(b[2:])}, nil
}

// Role is what a controller may do on its connection (OpenFlow 1.4.1, 7.3.9).
type Role uint32

// The roles. Connections begin as RoleEqual.
const (
	RoleNoChange  Role = 0 // asks only
	RoleEqual     Role = 1
	RolePrimary   Role = 2
	RoleSecondary Role = 3 // reads only
)

// RoleRequest asks for a role.
type RoleRequest struct {
	Role       Role
	Generation uint64 // of the election; a smaller one than before is refused as stale
}

// RoleReply says which role the connection has.
type RoleReply struct {
	Role       Role
	Generation uint64
}

func (*RoleRequest) messageType() uint8 { return typeRoleRequest }
func (*RoleReply) messageType() uint8   { return typeRoleReply }

func (m *RoleRequest) appendBody(b []byte, _ Version) ([]byte, error) {
	return appendRole(b, m.Role, m.Generation), nil
}

func (m *RoleReply) appendBody(b []byte, _ Version) ([]byte, error) {
	return appendRole(b, m.Role, m.Generation), nil
}

func appendRole(b []byte, r Role, generation uint64) []byte {
	return put64(zeros(put32(b, uint32(r)), 4), generation)
}

func decodeRole(typ uint8, b []byte) (Message, error) {
	if len(b) < 16 {
		return nil, short("role", len(b), 16)
	}
	if typ == typeRoleRequest {
		return &RoleRequest{Role: Role(u32(b)), Generation: u64(b[8:])}, nil
	}
	return &RoleReply{Role: Role(u32(b)), Generation: u64(b[8:])}, nil
}
