package endpoints

import "testing"

func TestProblem_Error(t *testing.T) {
	for _, c := range []struct {
		problem Problem
		want    string
	}{
		{
			Problem{InvalidAddress, "endpoints[3].addresses[0]", "db.example.com"},
			`endpoints[3].addresses[0]: "db.example.com" is no IPv4 address and is ignored; set four decimal numbers, such as 192.0.2.10`,
		},
		{Problem{InvalidPort, "ports[0].port", ""}, `ports[0].port: "" is no port and is ignored; set a number from 1 to 65535`},
	} {
		if got := c.problem.Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
