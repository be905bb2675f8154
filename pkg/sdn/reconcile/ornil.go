package reconcile

import apierrors "k8s.io/apimachinery/pkg/api/errors"

// OrNil returns nil instead of a NotFound error of a lister or client, whose object is then empty or nil.
func OrNil[T any](o *T, err error) (*T, error) {
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return o, nil
}
