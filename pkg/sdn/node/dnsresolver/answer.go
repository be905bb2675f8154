package dnsresolver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// maxCNAMEs bounds the aliases of one response that are followed.
const maxCNAMEs = 16

// errLoop is the error of a name that is an alias of itself.
var errLoop = errors.New("the name is an alias of itself")

// reply is the meaning of one response about a name.
type reply struct {
	addrs []netip.Addr // IPv4, sorted, each once
	alias string       // the name to ask for next, if the response has aliases and no address; "" otherwise
	ttl   time.Duration
}

// rcodeError is a response without an answer.
type rcodeError int

func (e rcodeError) Error() string {
	if text, known := dns.RcodeToString[int(e)]; known {
		return "the DNS server answered " + text
	}
	return fmt.Sprintf("the DNS server answered with code %d", int(e))
}

// read returns the meaning of a response about the name. A name without addresses, or that does not exist, has an empty reply.
func read(m *dns.Msg, name string) (reply, error) {
	switch m.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError:
	default:
		return reply{}, rcodeError(m.Rcode)
	}
	r := reply{ttl: maxTTL}
	current := canonical(name)
	for aliases := 0; ; aliases++ {
		target, ttl, found := aliasOf(m, current)
		if !found {
			break
		}
		if aliases == maxCNAMEs || target == canonical(name) {
			return reply{}, errLoop
		}
		current, r.ttl = target, min(r.ttl, ttl)
	}
	for _, rr := range m.Answer {
		a, ok := rr.(*dns.A)
		if !ok || canonical(a.Hdr.Name) != current || a.Hdr.Class != dns.ClassINET {
			continue
		}
		if addr, ok := netip.AddrFromSlice(a.A); ok {
			r.addrs = append(r.addrs, addr.Unmap())
			r.ttl = min(r.ttl, seconds(a.Hdr.Ttl))
		}
	}
	switch {
	case len(r.addrs) > 0:
		slices.SortFunc(r.addrs, netip.Addr.Compare)
		r.addrs = slices.Compact(r.addrs)
	case m.Rcode == dns.RcodeSuccess && current != canonical(name):
		r.alias = current
	default:
		r.ttl = min(r.ttl, negativeTTL(m))
	}
	return r, nil
}

func aliasOf(m *dns.Msg, name string) (target string, ttl time.Duration, found bool) {
	for _, rr := range m.Answer {
		if c, ok := rr.(*dns.CNAME); ok && canonical(c.Hdr.Name) == name {
			return canonical(c.Target), seconds(c.Hdr.Ttl), true
		}
	}
	return "", 0, false
}

// negativeTTL returns how long a name has no addresses (RFC 2308, section 5).
func negativeTTL(m *dns.Msg) time.Duration {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(seconds(soa.Hdr.Ttl), seconds(soa.Minttl), maxNegativeTTL)
		}
	}
	return minInterval
}

// seconds returns a TTL. RFC 2181, section 8: a TTL with the highest bit is 0.
func seconds(ttl uint32) time.Duration {
	if ttl > 1<<31-1 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}

func canonical(name string) string { return strings.ToLower(dns.Fqdn(name)) }
