package endpoints

import (
	"fmt"
	"slices"
	"strings"
)

// ProblemKind is the cause of a Problem, in CamelCase.
type ProblemKind string

// Kinds of Problems.
const (
	InvalidAddress      ProblemKind = "InvalidAddress"      // is no IPv4 address
	UnusableAddress     ProblemKind = "UnusableAddress"     // no packet can be routed to it, or it is in the service network
	InvalidPort         ProblemKind = "InvalidPort"         // is missing or not in 1 to 65535
	InvalidPortName     ProblemKind = "InvalidPortName"     // is missing
	InvalidProtocol     ProblemKind = "InvalidProtocol"     // is not TCP, UDP or SCTP
	DuplicatePort       ProblemKind = "DuplicatePort"       // an earlier port of the Service has the protocol and number
	InvalidSourceRange  ProblemKind = "InvalidSourceRange"  // is no IP range
	NoSourceRange       ProblemKind = "NoSourceRange"       // no entry of the list is an IPv4 range, so that no client may use the Service
	InvalidHealthCheck  ProblemKind = "InvalidHealthCheck"  // healthCheckNodePort is missing or not in 1 to 65535
	InvalidAffinityTime ProblemKind = "InvalidAffinityTime" // the timeout of session affinity is not in 1 to 86400 s
	TooManyEndpoints    ProblemKind = "TooManyEndpoints"    // the Service has more endpoints than are used
	TooManyPorts        ProblemKind = "TooManyPorts"        // the object has more ports than are used
	TooManyAddresses    ProblemKind = "TooManyAddresses"    // the Service has more addresses than are used
)

// Problem is an invalid field, which is ignored.
type Problem struct {
	Kind  ProblemKind
	Field string // its path in the object, such as "endpoints[3].addresses[0]"
	Value string // what the field has, at most maxProblemValue bytes of it
}

// Error returns a message with the field, the cause and the remedy.
func (p Problem) Error() string { return fmt.Sprintf("%s: %q %s", p.Field, p.Value, p.Kind.message()) }

// message returns the cause and the remedy, as the rest of a sentence after the value.
func (k ProblemKind) message() string {
	switch k {
	case InvalidAddress:
		return "is no IPv4 address and is ignored; set four decimal numbers, such as 192.0.2.10"
	case UnusableAddress:
		return "is reserved or in the service network, and is ignored; set the address of a pod or host"
	case InvalidPort:
		return "is no port and is ignored; set a number from 1 to 65535"
	case InvalidPortName:
		return "is no name of a port, which is ignored; set the name of the Service's port, or an empty name"
	case InvalidProtocol:
		return "is no supported protocol of a port, which is ignored; set TCP, UDP or SCTP"
	case DuplicatePort:
		return "with the same protocol is an earlier port too, and is ignored; remove one of them"
	case InvalidSourceRange:
		return "is no IP range and is ignored; set ADDRESS/BITS, such as 192.0.2.0/24"
	case NoSourceRange:
		return "and further entries are no IPv4 ranges, and no client reaches the addresses of load balancers; add one, such as 192.0.2.0/24"
	case InvalidHealthCheck:
		return "is no port, and load balancers cannot check nodes; set a number from 1 to 65535"
	case InvalidAffinityTime:
		return "is no timeout, and 10800 is used; set 1 to 86400 seconds"
	case TooManyEndpoints, TooManyPorts, TooManyAddresses:
		return "exceeds the number that is used, and the others are ignored; distribute them over several Services"
	default:
		return "is invalid and is ignored; correct the field"
	}
}

// Problems are the problems of an object.
type Problems struct {
	First []Problem // at most maxProblems of them
	Total int       // number of problems, which may be larger
}

const (
	maxProblems     = 8
	maxProblemValue = 64
)

// add adds a problem of the field with the formatted path.
func (p *Problems) add(kind ProblemKind, value, path string, args ...any) {
	if p.Total++; p.Total > maxProblems {
		return
	}
	if len(value) > maxProblemValue {
		value = value[:maxProblemValue]
	}
	p.First = append(p.First, Problem{Kind: kind, Field: fmt.Sprintf(path, args...), Value: strings.Clone(value)})
}

func (p Problems) equal(o Problems) bool { return p.Total == o.Total && slices.Equal(p.First, o.First) }

func (p Problems) clone() Problems { return Problems{First: slices.Clone(p.First), Total: p.Total} }
