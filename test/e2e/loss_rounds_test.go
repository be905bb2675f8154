package e2e

import (
	"fmt"
	"testing"
)

const (
	// maxRounds is how often a measurement is repeated while the machine counts dropped packets.
	maxRounds = 10
	// maxUncounted is how many rounds may lose packets that the machine did not count. Of 6 changes of an MTU one loses a ping in less than 1 of 5 rounds.
	maxUncounted = 2
	// wantLossless is how many rounds must lose nothing after one that did.
	wantLossless = 2
)

// rounds evaluates repeated measurements of loss. The first round suffices if it loses nothing. A fault that loses packets in most rounds is not excused: after
// a loss, two rounds must lose nothing.
type rounds struct {
	uncounted int // packets that the machine may lose in a round without counting them

	lossless, excused, dropped int // numbers of rounds: without a loss, with uncounted losses, with losses while the machine dropped packets
}

// add adds a round, in which packets were lost and the machine counted dropped ones. It reports whether the measurement is done, or the fault.
func (r *rounds) add(packets int, dropped int64) (done bool, fault string) {
	switch {
	case packets == 0:
		r.lossless++
		lossy := r.excused + r.dropped
		done = lossy == 0 || r.lossless >= wantLossless
	case dropped > 0:
		r.dropped++
	case packets > r.uncounted:
		return false, "the machine dropped nothing"
	default:
		if r.excused++; r.excused > maxUncounted {
			return false, fmt.Sprintf("%d rounds lost packets of which the machine dropped none, %d lost none", r.excused, r.lossless)
		}
	}
	if all := r.lossless + r.excused + r.dropped; !done && all >= maxRounds {
		return false, fmt.Sprintf("only %d of %d rounds lost nothing: the machine may be too busy, it dropped packets in %d", r.lossless, all, r.dropped)
	}
	return done, ""
}

func TestRounds(t *testing.T) {
	type round struct {
		packets int
		dropped int64
	}
	none, uncounted, dropped := round{}, round{packets: 3}, round{packets: 5, dropped: 1}
	for name, tc := range map[string]struct {
		rounds []round
		fault  bool
	}{
		"no loss":                           {[]round{none}, false},
		"the machine drops nothing":         {[]round{{packets: 4}}, true},
		"a loss that is not counted":        {[]round{uncounted, none, none}, false},
		"two losses that are not counted":   {[]round{uncounted, none, uncounted, none}, false},
		"three losses that are not counted": {[]round{uncounted, none, uncounted, uncounted}, true},
		"busy, then a fault":                {[]round{dropped, {packets: 4}}, true},
		"busy":                              {[]round{dropped, dropped, dropped, none, dropped, none}, false},
		"one of ten without a loss":         {[]round{dropped, dropped, dropped, dropped, dropped, dropped, dropped, dropped, dropped, none}, true},
		"too busy":                          {[]round{dropped, dropped, dropped, dropped, dropped, dropped, dropped, dropped, dropped, dropped}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := rounds{uncounted: 3}
			for i, round := range tc.rounds {
				done, fault := r.add(round.packets, round.dropped)
				if last := i == len(tc.rounds)-1; (done || fault != "") != last || (fault != "") != (tc.fault && last) {
					t.Fatalf("round %d: got done %t and fault %q; want a result after %d rounds, a fault: %t", i+1, done, fault, len(tc.rounds), tc.fault)
				}
			}
		})
	}
}
