package config

import (
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
)

// FixedVNID returns the VNID of all packets from an external machine, and whether its HostSubnet
// has networkv1.FixedVNIDHostAnnotation.
func FixedVNID(o *networkv1.HostSubnet) (vnid VNID, fixed bool, err error) {
	value, fixed := o.Annotations[networkv1.FixedVNIDHostAnnotation]
	if !fixed {
		return 0, false, nil
	}
	if vnid, err = ParseVNID(value); err != nil {
		err = fmt.Errorf("annotation %s: %w", networkv1.FixedVNIDHostAnnotation, err)
	}
	return vnid, true, err
}
