package endpoints

import (
	"math"

	corev1 "k8s.io/api/core/v1"
)

// maxPorts is the number of ports of a Service or Slice that are used.
const maxPorts = 1000

// portNumber returns a port as its type. ok is false for 0 and numbers out of range.
func portNumber(n int32) (number uint16, ok bool) {
	if n < 1 || n > math.MaxUint16 {
		return 0, false
	}
	return uint16(n), true
}

// protocolOf returns the protocol of a field, which is TCP by default. Its text is a constant, so that objects share it.
func protocolOf(p corev1.Protocol) (protocol corev1.Protocol, ok bool) {
	switch p {
	case "", corev1.ProtocolTCP:
		return corev1.ProtocolTCP, true
	case corev1.ProtocolUDP:
		return corev1.ProtocolUDP, true
	case corev1.ProtocolSCTP:
		return corev1.ProtocolSCTP, true
	default:
		return "", false
	}
}
