package config

import (
	"fmt"
	"strconv"
)

// LogDeniedAnnotation on a Namespace, with the value "true", has nodes log what policies deny to its pods.
const LogDeniedAnnotation = "ovsdn.io/log-denied"

// ParseLogDenied reads LogDeniedAnnotation among a Namespace's annotations. With an error nothing is logged.
func ParseLogDenied(annotations map[string]string) (bool, error) {
	value, ok := annotations[LogDeniedAnnotation]
	switch {
	case !ok, value == strconv.FormatBool(false):
		return false, nil
	case value == strconv.FormatBool(true):
		return true, nil
	}
	return false, fmt.Errorf("annotation %s: %q is neither \"true\" nor \"false\": nothing is logged", LogDeniedAnnotation, value)
}
