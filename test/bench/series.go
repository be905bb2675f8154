package main

import (
	"math"
	"slices"
	"strconv"
	"time"
)

// series is what one contender showed, in the row's unit.
type series struct {
	Contender string  `json:"who"`
	N         int     `json:"n"`
	Median    float64 `json:"median"`
	P25       float64 `json:"p25"`
	P75       float64 `json:"p75"`
	P99       float64 `json:"p99"`
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`

	Samples []float64 `json:"samples"`

	bounds []bound // of ours beside this reference; none or one
}

// bound is the limit of ours, or of the ratio of ours to the reference.
type bound struct {
	text  string
	holds func(ours, ratio float64) bool
}

func atMost(limit float64) bound {
	return bound{"≤ " + number(limit) + "×", func(_, ratio float64) bool { return ratio <= limit }}
}

func below(limit float64) bound {
	return bound{"< " + number(limit) + "×", func(_, ratio float64) bool { return ratio < limit }}
}

func atLeast(limit float64) bound {
	return bound{"≥ " + number(limit) + "×", func(_, ratio float64) bool { return ratio >= limit }}
}

// quickerBy is at most one part in so many.
func quickerBy(times float64) bound {
	return bound{"≤ 1/" + number(times) + "×", func(_, ratio float64) bool { return ratio*times <= 1 }}
}

// within bounds ours itself, in the row's unit, whatever the reference does.
func within(limit float64, unit string) bound {
	return bound{"< " + number(limit) + " " + unit, func(ours, _ float64) bool { return ours < limit }}
}

// none is for counts of what is not to happen at all, whatever the reference does.
func none() bound {
	return bound{"= 0", func(ours, _ float64) bool { return ours == 0 }}
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// seriesOf sums samples up.
func seriesOf(contender string, samples []float64, bounds ...bound) series {
	s := series{Contender: contender, N: len(samples), Samples: samples, bounds: bounds}
	if len(samples) == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(samples))
	s.Min, s.Max = sorted[0], sorted[len(sorted)-1]
	s.P25, s.Median, s.P75, s.P99 = quantile(sorted, 0.25), quantile(sorted, 0.5), quantile(sorted, 0.75), quantile(sorted, 0.99)
	return s
}

// quantile interpolates between the two nearest samples; they are in order.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := math.Floor(at)
	high := math.Ceil(at)
	return sorted[int(low)] + (at-low)*(sorted[int(high)]-sorted[int(low)])
}

// row is one line of the table: ours, and what it is measured beside.
type row struct {
	Figure string      `json:"figure"`
	Case   string      `json:"case"`
	Unit   string      `json:"unit"`
	Ours   series      `json:"ours"`
	Beside []reference `json:"beside"`
}

// reference is a floor or a peer, and how ours compares.
type reference struct {
	series
	Ratio float64 `json:"ratio"`           // of the medians, ours to the reference's
	Bound string  `json:"bound,omitempty"` // × is of the ratio, else of ours
	Holds *bool   `json:"holds,omitempty"` // nil without a bound
}

func compare(ours, ref series) reference {
	r := reference{series: ref}
	if ref.Median != 0 {
		r.Ratio = ours.Median / ref.Median
	}
	for _, b := range ref.bounds {
		holds := b.holds(ours.Median, r.Ratio)
		r.Bound, r.Holds = b.text, &holds
	}
	return r
}

func milliseconds(times []time.Duration) []float64 { return in(time.Millisecond, times) }
func seconds(times []time.Duration) []float64      { return in(time.Second, times) }

func in(unit time.Duration, times []time.Duration) []float64 {
	out := make([]float64, len(times))
	for i, t := range times {
		out[i] = float64(t) / float64(unit)
	}
	return out
}
