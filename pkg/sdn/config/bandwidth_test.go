package config

import (
	"strings"
	"testing"
)

func TestParseBandwidth(t *testing.T) {
	for value, want := range map[string]struct {
		limit  uint64
		reason string // in the error; "": valid
	}{
		"1k":                      {1e3, ""},
		"1000":                    {1e3, ""},
		"10M":                     {10e6, ""},
		"1.5G":                    {15e8, ""},
		"1Mi":                     {1 << 20, ""},
		"1e9":                     {1e9, ""},
		"1P":                      {1e15, ""},
		"1500.5":                  {1501, ""},
		"":                        {0, "not a quantity"},
		"ten":                     {0, "not a quantity"},
		"10 M":                    {0, "not a quantity"},
		"10Mbit":                  {0, "not a quantity"},
		"0":                       {0, "less than 1k"},
		"1":                       {0, "less than 1k"},
		"999":                     {0, "less than 1k"},
		"999999m":                 {0, "less than 1k"},
		"-10M":                    {0, "less than 1k"},
		"1e-999999999":            {0, "not a quantity"},
		"1e999999999":             {0, "not a quantity"}, // takes minutes to parse
		"1e+99":                   {0, "more than 1P"},
		"1e-99":                   {0, "less than 1k"},
		"2P":                      {0, "more than 1P"},
		"1000000000000001":        {0, "more than 1P"},
		"1E":                      {0, "more than 1P"},
		strings.Repeat("1", 1000): {0, "longer than 32 bytes"},
	} {
		got, err := ParseBandwidth(map[string]string{IngressBandwidthAnnotation: value}, IngressBandwidthAnnotation)
		if want.reason == "" && err != nil || want.reason != "" && (err == nil || !strings.Contains(err.Error(), want.reason)) {
			t.Errorf("%s: got error %v, want %q", Shorten(value), err, want.reason)
		}
		if got != want.limit {
			t.Errorf("%s: got %d, want %d", Shorten(value), got, want.limit)
		}
	}
}
