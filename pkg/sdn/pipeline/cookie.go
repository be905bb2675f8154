package pipeline

import (
	"fmt"
	"hash/fnv"
)

// Kind is the kind of object that a flow was compiled from. It is the first byte of the flow's cookie, so
// `ovs-ofctl dump-flows br0 cookie=0x02…/0xff…` lists one kind. Numbers are never reused.
type Kind uint8

// The kinds of owner.
const (
	KindShared     Kind = 0x01 // a flow that several owners contribute to
	KindNode       Kind = 0x02 // the node's static flows
	KindHostSubnet Kind = 0x03 // a remote node or an external machine
	KindPod        Kind = 0x04 // a local pod's sandbox
	KindService    Kind = 0x05 // a service
	KindMulticast  Kind = 0x06 // multicast of a VNID, and the nodes that receive copies
	KindPolicy     Kind = 0x07 // a part of the rules of policies

	KindNodeAddresses Kind = 0x08 // the addresses of a Node

	KindAffinity Kind = 0x09 // the endpoint of a client of a service; Open vSwitch learns the flow

	KindEgressFirewall Kind = 0x0a // the egress firewall of a namespace

	KindEgressIP Kind = 0x0b // an egress IP that a node hosts
)

func (k Kind) String() string {
	switch k {
	case KindShared:
		return "shared"
	case KindNode:
		return "node"
	case KindHostSubnet:
		return "hostsubnet"
	case KindPod:
		return "pod"
	case KindService:
		return "service"
	case KindMulticast:
		return "multicast"
	case KindPolicy:
		return "policy"
	case KindNodeAddresses:
		return "node addresses"
	case KindAffinity:
		return "affinity"
	case KindEgressFirewall:
		return "egress firewall"
	case KindEgressIP:
		return "egress IP"
	}
	return fmt.Sprintf("kind(%#02x)", uint8(k))
}

// Owner names the cluster object that desired state was compiled from.
type Owner struct {
	Kind Kind
	Key  string // unique within the kind: a node's name, namespace/name, a sandbox id
}

func (o Owner) String() string {
	return o.Kind.String() + " " + o.Key
}

// A cookie is 64 bits:
//
//	63      56 55                                     0
//	+---------+---------------------------------------+
//	|  kind   |   FNV-1a of the key, upper 56 bits    |
//	+---------+---------------------------------------+
const cookieHashBits = 56

// Cookie returns the cookie of the owner's flows. It is never 0, which is what foreign flows carry.
func (o Owner) Cookie() uint64 {
	h := fnv.New64a()
	h.Write([]byte(o.Key)) // never fails (hash.Hash)
	return uint64(o.Kind)<<cookieHashBits | h.Sum64()>>(64-cookieHashBits)
}

// SharedCookie marks a flow that more than one owner contributes to.
func SharedCookie() uint64 {
	return uint64(KindShared) << cookieHashBits
}

// CookieKind returns the kind of owner of a cookie.
func CookieKind(cookie uint64) Kind {
	return Kind(cookie >> cookieHashBits)
}
