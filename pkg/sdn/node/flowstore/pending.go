package flowstore

import "time"

// pending has the times since which the switch lacks a part of the desired state; zero: it does not. Rejected states are not pending.
type pending struct {
	queued   time.Time // the oldest change that no write has taken
	writing  time.Time // the oldest change of the current write
	replaced time.Time // the first request of a replacement, other than an audit, since the last one that succeeded
}

// since returns the earliest of the times.
func (p *pending) since() time.Time { return earliest(p.queued, earliest(p.writing, p.replaced)) }

// take begins a write of the queued changes.
func (p *pending) take() { p.writing, p.queued = p.queued, time.Time{} }

// end ends a write that began at a time. again reports that some of its changes are queued again; unknown, that a replacement is still due, which is a later one if
// the write was a replacement itself.
func (p *pending) end(began time.Time, again, unknown, replacement bool) {
	if again {
		p.queued = earliest(p.writing, p.queued)
	}
	p.writing = time.Time{}
	switch {
	case !unknown:
		p.replaced = time.Time{}
	case replacement || p.replaced.IsZero():
		p.replaced = began
	}
}

// mark sets a time to the current one, unless it is set.
func mark(t *time.Time) {
	if t.IsZero() {
		*t = time.Now()
	}
}

// earliest returns the earlier time; zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
