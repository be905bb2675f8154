package config

import (
	"fmt"
	"strconv"
)

// LogDeniedAnnotation with the value "true" makes nodes log packets of pods of the Namespace that policies deny.
const LogDeniedAnnotation = "ovsdn.io/log-denied"

// ParseLogDenied parses LogDeniedAnnotation in the annotations of a Namespace. With an error it returns false.
func ParseLogDenied(annotations map[string]string) (bool, error) {
	value, ok := annotations[LogDeniedAnnotation]
	switch {
	case !ok, value == strconv.FormatBool(false):
		return false, nil
	case value == strconv.FormatBool(true):
		return true, nil
	}
	return false, fmt.Errorf("annotation %s: %q is neither \"true\" nor \"false\": nothing is logged", LogDeniedAnnotation, Shorten(value))
}
