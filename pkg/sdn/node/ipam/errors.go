package ipam

import (
	"errors"
	"fmt"
	"net/netip"
)

// FullError reports that no address is free.
type FullError struct {
	Subnets []netip.Prefix
	Owners  int // attachments with addresses
}

func (e *FullError) Error() string {
	return fmt.Sprintf("no free address in %v: %d interfaces have addresses", e.Subnets, e.Owners)
}

// IsFull reports whether the error is a FullError.
func IsFull(err error) bool { return errors.As(err, new(*FullError)) }

// AllocatedError reports that the interface already has addresses.
type AllocatedError struct {
	Addrs       []netip.Addr
	ContainerID string
	IfName      string
}

func (e *AllocatedError) Error() string {
	return fmt.Sprintf("container %s already has %v on %s", e.ContainerID, e.Addrs, e.IfName)
}

// IsAllocated reports whether the error is an AllocatedError.
func IsAllocated(err error) bool { return errors.As(err, new(*AllocatedError)) }

// ConflictError reports that another interface has a lease of the address.
type ConflictError struct {
	Addr        netip.Addr
	ContainerID string
	IfName      string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("address %s is in use twice: it is leased to container %s for %s", e.Addr, e.ContainerID, e.IfName)
}

// IsConflict reports whether the error is a ConflictError.
func IsConflict(err error) bool { return errors.As(err, new(*ConflictError)) }
