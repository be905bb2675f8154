package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// A figure measures one thing of ours beside its references. To add one, write its run and put it into figures.
type figure struct {
	name  string // how it is asked for
	about string // one line for --help
	run   func(b *B)
}

// options limit the duration of a run.
type options struct {
	samples int // of what takes milliseconds
	rounds  int // of what takes seconds
}

// B is the context of a figure. It is a testing.TB, so that figures use the same helpers as tests: Fatal ends the figure, and recorded
// results remain.
type B struct {
	*tb
	options

	figure string
	rows   []row
	last   time.Time
}

// measure runs the figure and returns what it recorded, also when it failed.
func (f figure) measure(ctx context.Context, o options) ([]row, error) {
	b := &B{options: o, figure: f.name}
	b.tb = newTB(ctx, f.name, b.progress)
	start := time.Now()
	b.progress("%s", f.about)
	err := b.do(func() { f.run(b) })
	b.progress("done in %v", time.Since(start).Round(time.Second))
	return b.rows, err
}

// record adds a row to the table.
func (b *B) record(scenario, unit string, ours series, beside ...series) {
	r := row{Figure: b.figure, Case: scenario, Unit: unit, Ours: ours}
	for _, ref := range beside {
		r.Beside = append(r.Beside, compare(ours, ref))
	}
	b.rows = append(b.rows, r)
	for _, ref := range r.Beside {
		b.progress("%s: %s %s, %s %s: %.2f", scenario, show(ours.Median), unit, ref.Contender, show(ref.Median), ref.Ratio)
	}
}

// progress prints a line of progress.
func (b *B) progress(format string, args ...any) {
	b.last = time.Now()
	fmt.Fprintf(os.Stderr, "%s %s: %s\n", b.last.Format(time.TimeOnly), b.figure, fmt.Sprintf(format, args...))
}

// step is progress for the steps of a loop: it omits lines that follow too quickly.
func (b *B) step(format string, args ...any) {
	const pace = 3 * time.Second
	if time.Since(b.last) >= pace {
		b.progress(format, args...)
	}
}

// must ends the figure with the error, if it is one.
func (b *B) must(err error) {
	if err != nil {
		b.Fatal(err)
	}
}

// timed returns how long f takes.
func timed(f func() error) (time.Duration, error) {
	start := time.Now()
	err := f()
	return time.Since(start), err
}

// turns returns all in the order of the nth round, so that each contender is first equally often.
func turns[T any](all []T, n int) []T {
	at := n % len(all)
	return slices.Concat(all[at:], all[:at])
}
