package diagnosticsapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const (
	maxCaptures = 16 // that are answered at the same time: each has a connection of kube-apiserver and one of an agent

	captureOpenTimeout  = 10 * time.Second // until the file begins
	captureGrace        = 30 * time.Second // after the duration of the capture
	captureWriteTimeout = 30 * time.Second // for each part of the file
	captureBuffer       = 32 << 10
)

// captureAt returns the pod of the path of a capture.
func captureAt(path string) (pod diagnostics.Object, ok bool) {
	rest, ok := strings.CutPrefix(path, versionPath+"/namespaces/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 4 || parts[1] != captures || parts[3] != diagnostics.CaptureSubresource {
		return diagnostics.Object{}, false
	}
	pod = diagnostics.Object{Kind: diagnostics.KindPod, Namespace: parts[0], Name: parts[2]}
	return pod, len(validation.IsDNS1123Label(pod.Namespace)) == 0 && len(validation.IsDNS1123Subdomain(pod.Name)) == 0
}

// serveCapture answers the creation of a Capture of the pod with the file that the agent of its node sends.
func (s *Server) serveCapture(w http.ResponseWriter, r *http.Request, u user, pod diagnostics.Object, query url.Values) error {
	if r.Method != http.MethodPost {
		return apierrors.NewMethodNotSupported(resourceOf(captures), strings.ToLower(printable(r.Method, maxName)))
	}
	if err := s.authorize(r.Context(), u, access{verb: "create", resource: captures, subresource: diagnostics.CaptureSubresource, namespace: pod.Namespace, name: pod.Name}); err != nil {
		return err
	}
	o := &diagnostics.Capture{}
	c := &creation{resource: captures, kind: "Capture", object: o, types: &o.TypeMeta, meta: &o.ObjectMeta}
	warnings, err := c.decode(http.MaxBytesReader(w, r.Body, maxTraceBody), r.Header.Get("Content-Type"), query)
	if err != nil {
		return err
	}
	if o.Namespace != "" && o.Namespace != pod.Namespace || o.Name != "" && o.Name != pod.Name {
		return apierrors.NewBadRequest("the name or the namespace of the provided object does not match that of the request")
	}
	if errs := o.Spec.Complete(); len(errs) > 0 {
		return c.invalid(pod.Name, errs)
	}
	release, err := s.captures.acquire(u, pod.Namespace, captures) // after the body: a slow client must not occupy it
	if err != nil {
		return err
	}
	defer release()
	if !s.nodes.HasSynced() {
		return apierrors.NewServiceUnavailable("the controller has not read all HostSubnets yet; retry later")
	}
	node, uid, err := s.capturedPod(r.Context(), c, pod)
	if err != nil {
		return err
	}
	parameters := o.Spec.Query()
	parameters.Set(diagnostics.PodParameter, pod.String())
	parameters.Set(diagnostics.PodUIDParameter, uid)
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(o.Spec.DurationSeconds)*time.Second+captureGrace)
	defer cancel()
	body, err := s.openCapture(ctx, cancel, node, parameters)
	if err != nil {
		return statusOf(captures, node.Name, err)
	}
	defer body.Close()
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "node", node.Name, "user", u.name)
	logger.Info("Started a capture of packets", "duration", time.Duration(o.Spec.DurationSeconds)*time.Second, "filter", o.Spec.Filter())
	for _, warning := range warnings {
		w.Header().Add("Warning", fmt.Sprintf("299 - %q", warning))
	}
	size, err := forward(w, body, int64(o.Spec.MaxBytes))
	logger.Info("Ended a capture of packets", "bytes", size, "err", err)
	if err != nil {
		panic(http.ErrAbortHandler) // the client gets an incomplete answer, which it reports
	}
	return nil
}

// capturedPod returns the node of the pod, and the UID of its sandboxes.
func (s *Server) capturedPod(ctx context.Context, c *creation, o diagnostics.Object) (Node, string, error) {
	pod, err := s.Kube.CoreV1().Pods(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return Node{}, "", s.creationError(ctx, c, o.Name, err)
	}
	switch phase := pod.Status.Phase; {
	case pod.Spec.HostNetwork:
		return Node{}, "", c.invalid(o.Name, field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), o.Name, "the pod is on the host network, whose packets are those of all pods of the node")})
	case pod.Spec.NodeName == "":
		return Node{}, "", apierrors.NewBadRequest(o.String() + " is not scheduled yet")
	case phase == corev1.PodSucceeded || phase == corev1.PodFailed:
		return Node{}, "", apierrors.NewBadRequest(o.String() + " has ended")
	}
	node, ok := s.nodes.Get(pod.Spec.NodeName)
	switch {
	case !ok:
		return Node{}, "", apierrors.NewServiceUnavailable(fmt.Sprintf("node %s has no HostSubnet", pod.Spec.NodeName))
	case node.NoAgent != "":
		return Node{}, "", apierrors.NewServiceUnavailable(fmt.Sprintf("%s %q: %s", captures, node.Name, node.NoAgent))
	}
	return node, string(config.PodUID(pod)), nil
}

// openCapture requests the file from the agent. cancel ends the context if the file does not begin in time.
func (s *Server) openCapture(ctx context.Context, cancel func(), node Node, parameters url.Values) (io.ReadCloser, error) {
	late := time.AfterFunc(captureOpenTimeout, cancel)
	body, err := s.Agents.Stream(ctx, node.Name, node.HostIP, diagnostics.NodeCapturePath, parameters)
	switch isInTime := late.Stop(); {
	case isInTime:
		return body, err
	case err == nil:
		return nil, errors.Join(context.DeadlineExceeded, body.Close())
	}
	return nil, context.DeadlineExceeded
}

// forward sends the file as it arrives. A file that is larger than its limit is an error: the agent of a compromised node must not fill the user's disk.
func forward(w http.ResponseWriter, body io.Reader, limit int64) (size int64, err error) {
	w.Header().Set("Content-Type", diagnostics.ContentTypePcapng)
	w.Header().Set("Cache-Control", "no-cache, private")
	controller := http.NewResponseController(w)
	if err := errors.Join(controller.SetWriteDeadline(time.Now().Add(captureWriteTimeout)), controller.Flush()); err != nil {
		return 0, err
	}
	for buffer := make([]byte, captureBuffer); ; {
		n, err := body.Read(buffer)
		if size += int64(n); size > limit {
			return size, &tooLargeError{limit}
		}
		if n > 0 {
			if err := controller.SetWriteDeadline(time.Now().Add(captureWriteTimeout)); err != nil {
				return size, err
			}
			if _, err := w.Write(buffer[:n]); err != nil {
				return size, err
			}
			if err := controller.Flush(); err != nil {
				return size, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return size, nil
		case err != nil:
			return size, err
		}
	}
}
