package config

import "testing"

func TestParseLogDenied(t *testing.T) {
	for value, want := range map[string]struct{ logged, wrong bool }{
		"true": {true, false}, "false": {false, false}, "True": {false, true}, "": {false, true}, "1": {false, true},
	} {
		logged, err := ParseLogDenied(map[string]string{LogDeniedAnnotation: value})
		if logged != want.logged || (err != nil) != want.wrong {
			t.Errorf("%q: %v, %v", value, logged, err)
		}
	}
	if logged, err := ParseLogDenied(nil); logged || err != nil {
		t.Errorf("without annotation: %v, %v", logged, err)
	}
}
