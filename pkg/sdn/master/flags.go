package master

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// namingFlags returns the faults of a ClusterNetwork that was made of flags with the flags in place of the fields.
func namingFlags(err error) error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return err
	}
	var errs []error
	for _, fault := range joined.Unwrap() {
		if f, ok := errors.AsType[*config.FieldError](fault); ok {
			fault = flagError(f)
		}
		errs = append(errs, fault)
	}
	return errors.Join(errs...)
}

func flagError(f *config.FieldError) error {
	flag := f.Field
	switch {
	case f.Field == "clusterNetworks":
		return errors.New("--cluster-network: give at least one range, such as 10.128.0.0/14")
	case strings.HasSuffix(f.Field, ".hostSubnetLength"):
		flag = "--host-bits"
	case strings.HasPrefix(f.Field, "clusterNetworks["):
		flag = "--cluster-network"
	case f.Field == "serviceNetwork":
		flag = "--service-network"
	case f.Field == "pluginName":
		flag = "--mode"
	case f.Field == "vxlanPort":
		flag = "--vxlan-port"
	case f.Field == "mtu":
		flag = "--mtu"
	}
	return fmt.Errorf("%s: %w", flag, f.Err)
}
