package reconcile

import apierrors "k8s.io/apimachinery/pkg/api/errors"

// OrNil turns the answer that there is no such object, of a lister or a client, into nil.
func OrNil[T any](o *T, err error) (*T, error) {
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return o, nil
}
