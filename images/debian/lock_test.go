package debian

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sum = "3eb1ea6d85488f488cc2a163b98ad640ef88cee4c79287cf14e361aaf6206f47"

func TestParseLock(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want Lock
		err  []string
	}{
		"comments and blanks": {
			"# a comment\n\nlibc6 2.36-9+deb12u14 " + sum + " # why\nlibgmp10 2:6.2.1+dfsg1-1.1  " + sum + "\n",
			Lock{{"libc6", "2.36-9+deb12u14", sum}, {"libgmp10", "2:6.2.1+dfsg1-1.1", sum}}, nil,
		},
		"nothing":                {"", nil, nil},
		"a word is missing":      {"libc6 2.36", nil, []string{"line 1", "NAME VERSION SHA256"}},
		"an option of apt":       {"--allow-unauthenticated 1 " + sum, nil, []string{"line 1"}},
		"a path":                 {"../libc6 1 " + sum, nil, []string{"../libc6"}},
		"a version with a blank": {"libc6 2.36 -9 " + sum, nil, []string{"4 words"}},
		"an option as version":   {"libc6 -o " + sum, nil, []string{`"-o"`}},
		"a short sum":            {"libc6 1 " + sum[1:], nil, []string{sum[1:]}},
		"twice":                  {"a1 1 " + sum + "\na1 2 " + sum, nil, []string{"line 2: duplicate package a1"}},
		"several":                {"a\nb", nil, []string{"line 1", "line 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseLock(strings.NewReader(test.text))
			if test.err == nil {
				if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
					t.Errorf("error %v (-want +got):\n%s", err, diff)
				}
				return
			}
			for _, want := range test.err {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not contain %q", err, want)
				}
			}
		})
	}
}

// A lock is written as it was read, and an invalid one is an error.
func FuzzParseLock(f *testing.F) {
	f.Add("libc6 2.36-9+deb12u14 " + sum + "\n")
	f.Add("# nothing\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLock(strings.NewReader(text))
		if err != nil {
			return
		}
		again, err := parseLock(strings.NewReader(l.String()))
		if diff := cmp.Diff(l, again); err != nil || diff != "" {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	})
}
