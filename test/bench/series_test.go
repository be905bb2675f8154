package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSeries(t *testing.T) {
	var samples []float64
	for i := range 101 {
		samples = append(samples, float64(100-i)) // 100, 99 … 0
	}
	got := seriesOf("ours", samples)
	if got.N != 101 || got.Min != 0 || got.P25 != 25 || got.Median != 50 || got.P75 != 75 || got.P99 != 99 || got.Max != 100 {
		t.Errorf("%+v", got)
	}
	if got := seriesOf("ours", []float64{1, 2}); got.Median != 1.5 {
		t.Errorf("the median of 1 and 2 is %v", got.Median)
	}
	if got := seriesOf("ours", nil); got.N != 0 || got.Median != 0 {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestBounds(t *testing.T) {
	for _, tt := range []struct {
		bound     bound
		text      string
		ours, ref float64
		holds     bool
	}{
		{atMost(1.3), "≤ 1.3×", 13, 10, true},
		{atMost(1.3), "≤ 1.3×", 14, 10, false},
		{atLeast(2), "≥ 2×", 20, 10, true},
		{atLeast(2), "≥ 2×", 19, 10, false},
		{below(1), "< 1×", 9, 10, true},
		{below(1), "< 1×", 10, 10, false},
		{quickerBy(20), "≤ 1/20×", 1, 20, true},
		{quickerBy(20), "≤ 1/20×", 1, 19, false},
		{within(1, "ms"), "< 1 ms", 0.9, 0.1, true},
		{within(1, "ms"), "< 1 ms", 1, 2, false},
		{none(), "= 0", 0, 0, true},
		{none(), "= 0", 1, 0, false},
		{none(), "= 0", 1, 10, false},
	} {
		got := compare(seriesOf("ours", []float64{tt.ours}), seriesOf("floor", []float64{tt.ref}, tt.bound))
		if got.Bound != tt.text || got.Holds == nil || *got.Holds != tt.holds {
			t.Errorf("%v beside %v, bound %s: %+v", tt.ours, tt.ref, tt.text, got)
		}
	}
}

func TestTable(t *testing.T) {
	ours := seriesOf("ours", []float64{4, 4})
	r := report{Rows: []row{{Figure: "add", Case: "ADD", Unit: "ms", Ours: ours, Beside: []reference{
		compare(ours, seriesOf("floor", []float64{1, 2, 3}, atMost(1))),
		compare(ours, seriesOf("peer", []float64{0})),
		compare(ours, seriesOf("crowd", slices.Repeat([]float64{8}, manySamples))),
	}}}}
	var out bytes.Buffer
	r.print(&out)
	lines := strings.Split(out.String(), "\n")
	for i, want := range [][]string{
		{"add", "ADD", "ms", "4.00", "4.00–4.00", "floor", "2.00", "1.00–3.00", "2.00", "≤", "1×", "DOES", "NOT", "HOLD"},
		{"peer", "0", "–"},
		{"crowd", "8.00", "8.00–8.00", "8.00", "0.50"},
	} {
		if got := strings.Fields(lines[i+1]); !slices.Equal(got, want) {
			t.Errorf("line %d: %q, want %q", i+1, got, want)
		}
	}
}

func TestTurns(t *testing.T) {
	all := []string{"a", "b", "c"}
	for n, want := range []string{"abc", "bca", "cab", "abc"} {
		if got := strings.Join(turns(all, n), ""); got != want {
			t.Errorf("round %d: %s, want %s", n, got, want)
		}
	}
}

// A failed figure ends at that point, cleans up in the right order, and reports all errors.
func TestFigureFails(t *testing.T) {
	var did []string
	f := figure{name: "f", run: func(b *B) {
		b.Cleanup(func() { did = append(did, "first made") })
		b.Cleanup(func() {
			did = append(did, "second made")
			b.Error("not clean")
		})
		b.record("before", "s", seriesOf("ours", seconds([]time.Duration{time.Second})))
		b.Fatalf("no %s", "luck")
		did = append(did, "went on")
	}}
	rows, err := f.measure(t.Context(), options{samples: 1, rounds: 1})
	if err == nil || err.Error() != "no luck\nnot clean" {
		t.Errorf("error %v", err)
	}
	if want := []string{"second made", "first made"}; !slices.Equal(did, want) {
		t.Errorf("did %q, want %q", did, want)
	}
	if len(rows) != 1 || rows[0].Ours.Median != 1 {
		t.Errorf("rows %+v", rows)
	}
}
