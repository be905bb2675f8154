package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// exits returns the error of an iptables with the exit status.
func exits(t *testing.T, status int) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "iptables")
	writeProgram(t, path, fmt.Appendf(nil, "#!/bin/sh\ncase $1 in --version) echo 'iptables v1.8.9 (nf_tables)';; *) exit %d;; esac\n", status))
	ipt, err := iptables.New(iptables.Path(path), iptables.Timeout(lockWait))
	must(t, err)
	return ipt.NewChain(tableRaw, "OVSDN-TEST")
}

func TestOptional_remedy(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		static bool // the kernel loads no modules
		want   string
		lacks  bool
	}{
		"match unknown to the kernel, legacy": {err: exits(t, 1), want: "load the modules", lacks: true},
		"table missing, legacy":               {err: exits(t, 3), want: "load the modules", lacks: true},
		"match unknown to the kernel, nft":    {err: exits(t, 4), want: "load the modules", lacks: true},
		"kernel without ip_set":               {err: unix.EINVAL, want: "load the modules", lacks: true},
		"kernel without nfnetlink":            {err: unix.EPROTONOSUPPORT, want: "load the modules", lacks: true},
		"kernel without hash:ip":              {err: nl.IPSetError(nl.IPSET_ERR_FIND_TYPE), want: "load the modules", lacks: true},
		"conntrack not loaded":                {err: fs.ErrNotExist, want: "load the modules", lacks: true},
		"kernel that loads none":              {err: unix.EINVAL, static: true, want: "boot a kernel", lacks: true},
		"match unknown to iptables":           {err: exits(t, 2), want: "install an iptables"},
		"permission to use sets":              {err: unix.EPERM, want: "CAP_NET_ADMIN"},
		"permission to read":                  {err: &fs.PathError{Op: "open", Path: "nf_conntrack_max", Err: unix.EACCES}, want: "CAP_NET_ADMIN"},
		"set of another program":              {err: fmt.Errorf("set: %w", errForeignSet), want: "ipset destroy OVSDN-VTEPS"},
		"rules of another program":            {err: errForeignWriter, want: "stop the program"},
		"anything else":                       {err: unix.ENOMEM, want: "the agent retries"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.err == nil {
				t.Fatal("got no cause")
			}
			got, lacks := unknownVTEPs(nil).Optional.remedy(fmt.Errorf("cause: %w", tc.err), !tc.static)
			if !strings.Contains(got, tc.want) || lacks != tc.lacks {
				t.Errorf("got remedy %q, missing modules %t; want %q, %t", got, lacks, tc.want, tc.lacks)
			}
		})
	}
}

// forbiddenSets are the sets of an agent without permission.
type forbiddenSets struct{ ipsets }

func (forbiddenSets) list(context.Context, string) (*netlink.IPSetResult, error) {
	return nil, unix.EPERM
}

// The error of an agent without permission does not report missing modules.
func TestFirewall_noPermissionForSets(t *testing.T) {
	inNetNS(t)
	f, _ := backend("iptables-nft").firewall(t, openShift())
	f.vteps.sets = forbiddenSets{kernelSets{}}
	syncFirewall(t, f)
	skipped := f.Skipped()
	if len(skipped) != 2 {
		t.Fatalf("Skipped: got %+v, want %s and %s", skipped, FeatureVTEPs, FeatureEgressNotrack)
	}
	for _, s := range skipped {
		if !errors.Is(s.Err, fs.ErrPermission) || !strings.Contains(s.Remedy, "CAP_NET_ADMIN") || strings.Contains(s.Err.Error(), "the kernel needs") {
			t.Errorf("Skipped: got %+v, want a permission error without missing modules", s)
		}
	}
}
