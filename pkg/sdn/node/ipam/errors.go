package ipam

import (
	"errors"
	"fmt"
	"net/netip"
)

// FullError says that no address is left.
type FullError struct {
	Subnets []netip.Prefix
	Held    int // attachments that hold addresses
}

func (e *FullError) Error() string {
	return fmt.Sprintf("no free address in %v: %d interfaces hold addresses", e.Subnets, e.Held)
}

// IsFull tells whether the error is a FullError.
func IsFull(err error) bool {
	var e *FullError
	return errors.As(err, &e)
}

// HeldError says that the interface already has addresses.
type HeldError struct {
	Addrs       []netip.Addr
	ContainerID string
	IfName      string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("container %s already has %v on %s", e.ContainerID, e.Addrs, e.IfName)
}

// IsHeld tells whether the error is a HeldError.
func IsHeld(err error) bool {
	var e *HeldError
	return errors.As(err, &e)
}

// ConflictError says that another interface holds the address.
type ConflictError struct {
	Addr        netip.Addr
	ContainerID string
	IfName      string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("address %s is in use twice: container %s holds it for %s", e.Addr, e.ContainerID, e.IfName)
}

// IsConflict tells whether the error is a ConflictError.
func IsConflict(err error) bool {
	var e *ConflictError
	return errors.As(err, &e)
}
