package diagnosticsapi

import (
	"context"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

// Limits of strings that agents send, in bytes.
const (
	maxMessage = 512
	maxName    = 64 // of versions, modes and the like
	maxText    = 16 << 10
)

// printable returns at most limit bytes of the string. One with characters that a terminal could interpret is quoted.
func printable(s string, limit int) string {
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return strings.Clone(s) // does not retain the rest
}

// failureLogInterval is the interval of log lines on failures that clients can cause.
const failureLogInterval = time.Minute

// failureLog logs one failure in failureLogInterval.
type failureLog struct {
	sometimes rate.Sometimes
}

func newFailureLog() *failureLog {
	return &failureLog{rate.Sometimes{Interval: failureLogInterval}}
}

// log logs the error with the message, which is constant, and key/value pairs.
func (f *failureLog) log(ctx context.Context, err error, message string, keys ...any) {
	f.sometimes.Do(func() { klog.FromContext(ctx).Error(err, message, keys...) })
}
