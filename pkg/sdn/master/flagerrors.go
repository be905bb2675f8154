package master

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// namingFlags replaces fields by flags in the errors of a ClusterNetwork that was created from flags.
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
		return errors.New("--cluster-network: no range; set at least one, such as 10.128.0.0/14")
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
	case f.Field == "annotation "+config.ServiceProxyAnnotation:
		flag = "--service-proxy"
	}
	return fmt.Errorf("%s: %w", flag, f.Err)
}
