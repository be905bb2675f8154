package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// report is bench.json, and the table.
type report struct {
	Revision string    `json:"revision"` // of the checkout, "-dirty" behind it when something is not committed
	Started  time.Time `json:"started"`
	Machine  machine   `json:"machine"`
	Samples  int       `json:"samples"`
	Rounds   int       `json:"rounds"`
	Rows     []row     `json:"rows"`
}

// machine is what explains absolute numbers, as far as anything does.
type machine struct {
	CPUs        int     `json:"cpus"`
	Kernel      string  `json:"kernel"`
	OpenVSwitch string  `json:"openvswitch"`
	Go          string  `json:"go"`
	LoadBefore  float64 `json:"loadBefore"` // average of the last minute, see proc(5)
	LoadAfter   float64 `json:"loadAfter"`
}

func newReport(ctx context.Context, o options) *report {
	return &report{
		Revision: versionOf(ctx, "git", "describe", "--always", "--dirty"),
		Started:  time.Now().UTC().Truncate(time.Second),
		Machine: machine{
			CPUs: runtime.NumCPU(), Kernel: kernel(), OpenVSwitch: versionOf(ctx, "ovs-vswitchd", "--version"), Go: runtime.Version(),
			LoadBefore: load(),
		},
		Samples: o.samples, Rounds: o.rounds,
	}
}

// versionOf returns the first line that a program prints, or nothing: the report does not fail for that.
func versionOf(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	average, _ := strconv.ParseFloat(first, 64) // 0: unknown
	return average
}

func (r *report) add(rows []row) {
	r.Rows = append(r.Rows, rows...)
	r.Machine.LoadAfter = load()
}

// write replaces the file, so that a run that is interrupted leaves what it had.
func (r *report) write(file string) error {
	if file == "" {
		return nil
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	return os.WriteFile(file, append(content, '\n'), 0o644)
}

// print prints the table: a line for each reference, ours on the first.
func (r *report) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }
	line("FIGURE", "CASE", "UNIT", "OURS", "SPREAD", "p99", "BESIDE", "", "SPREAD", "p99", "RATIO", "BOUND", "")
	for _, row := range r.Rows {
		left := append([]string{row.Figure, row.Case, row.Unit}, row.Ours.cells()...)
		if len(row.Beside) == 0 {
			line(append(left, "", "", "", "", "", "", "")...)
		}
		for _, ref := range row.Beside {
			line(append(append(append(left, ref.Contender), ref.cells()...), ref.verdict()...)...)
			left = make([]string, len(left))
		}
	}
	_ = w.Flush() // to a terminal
	fmt.Fprintf(out, "\nmedians; spread: the half in the middle, or all of less than %d samples; ratio: ours to the reference's\n"+
		"%s, %d CPUs, load %.1f before and %.1f after, Linux %s, %s, %s\n",
		manySamples, r.Revision, r.Machine.CPUs, r.Machine.LoadBefore, r.Machine.LoadAfter, r.Machine.Kernel, r.Machine.OpenVSwitch, r.Machine.Go)
}

// Fewer samples than that have no tails to speak of, and are shown from end to end.
const manySamples = 20

func (s series) cells() []string {
	switch {
	case s.N <= 1:
		return []string{show(s.Median), "", ""}
	case s.N < manySamples:
		return []string{show(s.Median), show(s.Min) + "–" + show(s.Max), ""}
	}
	return []string{show(s.Median), show(s.P25) + "–" + show(s.P75), show(s.P99)}
}

func (r reference) verdict() []string {
	ratio := "–"
	if r.Median != 0 {
		ratio = fmt.Sprintf("%.2f", r.Ratio)
	}
	switch {
	case r.Holds == nil:
		return []string{ratio, "", ""}
	case *r.Holds:
		return []string{ratio, r.Bound, "holds"}
	}
	return []string{ratio, r.Bound, "DOES NOT HOLD"}
}

// show writes a number with three digits, which is more than the spread allows for.
func show(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 10:
		return strconv.FormatFloat(x, 'f', 2, 64)
	case x < 100:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}
