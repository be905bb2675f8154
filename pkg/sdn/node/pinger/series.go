package pinger

import (
	"math/bits"
	"time"
)

// series is the results of the last probes of a path to a peer.
type series struct {
	results   uint64        // the last 64 probes, the last in the lowest bit: 1 is lost
	probes    int           // of results
	lostInRow int           // since the last answer
	everUp    bool          // at least one was answered
	smoothed  time.Duration // an exponential average of the round-trip time, as in RFC 6298
}

func (s *series) answered(rtt time.Duration) {
	s.add(0)
	s.lostInRow, s.everUp = 0, true
	if s.smoothed == 0 {
		s.smoothed = rtt
	}
	s.smoothed += (rtt - s.smoothed) / 8
}

func (s *series) lost() {
	s.add(1)
	s.lostInRow++
}

func (s *series) add(bit uint64) {
	s.results = s.results<<1 | bit
	s.probes = min(s.probes+1, 64)
}

// loss returns the part of the last probes, at most 64, that were lost.
func (s *series) loss() float64 {
	if s.probes == 0 {
		return 0
	}
	return float64(bits.OnesCount64(s.results)) / float64(s.probes)
}

// isBroken reports whether several probes in a row were lost.
func (s *series) isBroken() bool { return s.lostInRow >= failureThreshold }

// isUp reports whether the last probe was answered.
func (s *series) isUp() bool { return s.everUp && s.lostInRow == 0 }
