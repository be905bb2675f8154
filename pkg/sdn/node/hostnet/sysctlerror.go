package hostnet

// SysctlError is the error of Tun0.Sync if it has done all but write some sysctls, as with a read-only /proc/sys.
type SysctlError struct{ err error }

func (e *SysctlError) Error() string { return e.err.Error() }
func (e *SysctlError) Unwrap() error { return e.err }
