package machine

import "testing"

func TestParseHierarchy(t *testing.T) {
	for _, test := range []struct {
		line string
		want hierarchy
		ok   bool
	}{
		{
			"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct",
			hierarchy{"/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct"}, true,
		},
		{
			"40 31 0:37 / /sys/fs/cgroup/systemd rw,nosuid shared:9 - cgroup cgroup rw,xattr,release_agent=/x/y,name=systemd",
			hierarchy{"/sys/fs/cgroup/systemd", "cgroup", "none,name=systemd"}, true,
		},
		{
			"35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot",
			hierarchy{"/sys/fs/cgroup", "cgroup2", ""}, true,
		},
		{"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard", hierarchy{}, false},
		{"", hierarchy{}, false},
		{" - cgroup", hierarchy{}, false},
	} {
		got, ok := parseHierarchy(test.line)
		if got != test.want || ok != test.ok {
			t.Errorf("parseHierarchy(%q) = %+v, %v, want %+v, %v", test.line, got, ok, test.want, test.ok)
		}
	}
}
