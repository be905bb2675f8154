package veth

// NamespaceError reports that a path is not that of a pod's network namespace: a pod whose namespace had the path has it no longer.
type NamespaceError struct {
	Path string

	cause string
	err   error // nil: none
}

func (e *NamespaceError) Error() string {
	if e.err == nil {
		return e.Path + " " + e.cause
	}
	return e.Path + " " + e.cause + ": " + e.err.Error()
}

// Unwrap returns the error of the operating system.
func (e *NamespaceError) Unwrap() error { return e.err }
