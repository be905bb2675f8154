package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/test/lab/checkout"
)

const (
	samplesATurn = 20   // of each checkout, then the other one's
	slowerBy     = 1.05 // at most, of the medians
)

// against measures figures of this checkout and of another one alternately, and compares ours to ours: each turn is a run of the checkout's own
// bench program, which `make bench-against` builds at bin/bench.
func against(ctx context.Context, other string, o options, names []string) ([]row, error) {
	root, err := checkout.Root(".")
	if err != nil {
		return nil, err
	}
	turn := options{samples: min(o.samples, samplesATurn), rounds: o.rounds}
	var these, others []row
	for n := range (o.samples + turn.samples - 1) / turn.samples {
		sides := []side{{root, &these}, {other, &others}}
		for _, s := range turns(sides, n) {
			if err := s.measure(ctx, turn, names); err != nil {
				return nil, err
			}
		}
	}
	var compared []row
	for _, this := range these {
		for _, that := range others {
			if this.is(that) {
				ours := seriesOf("this checkout", this.Ours.Samples)
				theirs := seriesOf(filepath.Base(other), that.Ours.Samples, notSlower(this.Unit))
				compared = append(compared, row{Figure: this.Figure, Case: this.Case, Unit: this.Unit, Ours: ours, Beside: []reference{compare(ours, theirs)}})
			}
		}
	}
	return compared, nil
}

// side is one of the checkouts, and the rows of its turns.
type side struct {
	checkout string
	rows     *[]row
}

// measure runs the checkout's bench program, and adds its samples.
func (s side) measure(ctx context.Context, o options, names []string) (err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "turn.json")
	args := append([]string{"--samples", strconv.Itoa(o.samples), "--rounds", strconv.Itoa(o.rounds), "--json", file}, names...)
	cmd := exec.CommandContext(ctx, filepath.Join(s.checkout, "bin", "bench"), args...)
	cmd.Dir, cmd.Stderr = s.checkout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("bench of %s: %w", s.checkout, err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var turn report
	if err := json.Unmarshal(content, &turn); err != nil {
		return fmt.Errorf("decode the results of %s: %w", s.checkout, err)
	}
	for _, r := range turn.Rows {
		s.add(r)
	}
	return nil
}

// add appends the row's samples to those of earlier turns.
func (s side) add(r row) {
	for i, known := range *s.rows {
		if known.is(r) {
			(*s.rows)[i].Ours.Samples = append(known.Ours.Samples, r.Ours.Samples...)
			return
		}
	}
	*s.rows = append(*s.rows, r)
}

// is reports whether both rows measure the same.
func (r row) is(other row) bool {
	return r.Figure == other.Figure && r.Case == other.Case && r.Unit == other.Unit
}

// notSlower is the bound of a change: of rates more is better, of all else less.
func notSlower(unit string) bound {
	if strings.HasSuffix(unit, "/s") || unit == "×" {
		return bound{fmt.Sprintf("≥ 1/%s×", number(slowerBy)), func(_, ratio float64) bool { return ratio*slowerBy >= 1 }}
	}
	return atMost(slowerBy)
}
