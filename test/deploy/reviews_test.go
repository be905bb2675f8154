package deploy

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The requests of the server of metrics.

func reviewToken(ctx context.Context, client as) error {
	_, err := client.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "none"}}, metav1.CreateOptions{})
	return err
}

func reviewRight(ctx context.Context, client as) error {
	_, err := client.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "tenant", NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
	}}, metav1.CreateOptions{})
	return err
}

// getMetrics gets the path for which readers of metrics have a right, from the API server.
func getMetrics(ctx context.Context, client as) error {
	return client.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(ctx).Error()
}
