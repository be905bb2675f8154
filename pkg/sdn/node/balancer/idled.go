package balancer

import (
	"errors"
	"slices"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Idling holds packets that open connections to idled services, which the switch sends to the agent. Calls for one service do not overlap.
type Idling interface {
	// Hold begins to hold packets to the frontends of an idled service, before the switch sends the first.
	Hold(key string, svc *endpoints.Service, frontends []pipeline.Frontend)

	// Release ends it: the service has endpoints, and their flows are on the switch; or, if send is false, it is no longer idled, and its packets are dropped. It costs
	// little for a service that is not held.
	Release(key string, send bool)
}

// wakeTime is for how long a service without endpoints remains idled after its annotation was removed. ovsdn-controller removes it when the service has endpoints, or two
// minutes after it has scaled the workload; others, such as oc or a user, may do so as soon as the pods start.
const wakeTime = 30 * time.Second

// idledServices are the services that are idled; those whose annotation was removed have the time until when, others the zero time.
type idledServices map[string]time.Time

// set reports whether a service without endpoints is idled, and, if its annotation was removed, for how long.
func (s idledServices) set(key string, annotated, empty bool, now time.Time) (idled bool, left time.Duration) {
	until, was := s[key]
	switch {
	case !empty, !annotated && !was:
		delete(s, key)
		return false, 0
	case annotated:
		s[key] = time.Time{}
		return true, 0
	case until.IsZero():
		s[key] = now.Add(wakeTime)
		return true, wakeTime
	case now.Before(until):
		return true, until.Sub(now)
	}
	delete(s, key)
	return false, 0
}

// isIdled reports whether packets to a service are held; nil: it was deleted, or is not proxied. The service is compiled again when that ends by itself.
func (b *Balancer) isIdled(key string, svc *endpoints.Service, selected endpoints.Selection) bool {
	if b.idling == nil {
		return false
	}
	b.mu.Lock()
	idled, left := b.idled.set(key, svc != nil && svc.Idled, svc != nil && selected.Empty, time.Now())
	b.mu.Unlock()
	if left > 0 {
		b.loop.AddAfter(key, left)
	}
	return idled
}

// idle makes frontends without endpoints those of an idled service, and adds those of hosts outside, which the host sends to the switch.
func (b *Balancer) idle(svc *endpoints.Service, all []pipeline.Frontend, selected endpoints.Selection) []pipeline.Frontend {
	for i := range all {
		all[i].Idled = true
	}
	if !b.hostTranslates(svc) {
		return all
	}
	for i, port := range svc.Ports {
		if selected.Ports[i].External.Verdict != endpoints.Unused {
			all = append(all, pipeline.Frontend{
				Kind: pipeline.FromOutside, Addr: svc.ClusterIP, Protocol: protocol(port.Protocol), Port: port.Number, Idled: true,
			})
		}
	}
	return all
}

// hold passes an idled service on, whose flows are not stored yet.
func (b *Balancer) hold(key string, c compiled) {
	if c.idled {
		b.idling.Hold(key, c.proxied, c.frontends)
	}
}

// release ends the hold of a service whose change of flows has ended with err. If the change to its endpoints is retried, so is the release.
func (b *Balancer) release(key string, c compiled, err error) {
	if b.idling == nil || c.idled {
		return
	}
	hasEndpoints := slices.ContainsFunc(c.frontends, func(f pipeline.Frontend) bool { return len(f.Endpoints) > 0 })
	if isRetried := err != nil && !errors.As(err, new(*flowstore.MissingInputError)); isRetried && hasEndpoints {
		return
	}
	b.idling.Release(key, err == nil && hasEndpoints)
}
