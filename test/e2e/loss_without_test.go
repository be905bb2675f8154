package e2e

import (
	"slices"
	"testing"
	"time"
)

func TestLossBesideControlIsTheMachines(t *testing.T) {
	at := func(milliseconds ...int) (times []time.Time) {
		for _, ms := range milliseconds {
			times = append(times, time.UnixMilli(int64(ms)))
		}
		return times
	}
	for _, tc := range []struct {
		name                string
		lost, control, want []time.Time
	}{
		{"no loss", nil, at(1000), nil},
		{"without a loss of the control stream", at(1000, 1010), nil, at(1000, 1010)},
		{"within the window on both sides", at(900, 1000, 1100), at(1000), nil},
		{"outside of the window", at(899, 1101), at(1000), at(899, 1101)},
		{"between two losses of the control stream", at(950, 1200), at(900, 1000), at(1200)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := without(tc.lost, tc.control); !slices.EqualFunc(got, tc.want, time.Time.Equal) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
