package hostports

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// cleanupTimeout bounds the cleanup after a failed ADD, whose own context may have ended.
const cleanupTimeout = 10 * time.Second

// Handler executes requests by the next handler, which attaches pods, and maps their host ports. The next handler calls Release.
type Handler struct {
	cniserver.Handler // next
	ports             *Ports
}

var _ cniserver.Handler = &Handler{}

// Handler returns the handler of requests.
func (p *Ports) Handler(next cniserver.Handler) *Handler { return &Handler{Handler: next, ports: p} }

// Add implements cniserver.Handler.
func (h *Handler) Add(ctx context.Context, req *cniserver.Request) (*current.Result, error) {
	mappings, err := parseMappings(req.Config)
	if err != nil {
		return nil, err
	}
	if len(mappings) == 0 {
		return h.Handler.Add(ctx, req)
	}
	r, err := newRecord(req, mappings)
	if err != nil {
		return nil, err
	}
	c, err := h.ports.reserve(ctx, r)
	if err != nil {
		h.ports.failed(r, err)
		klog.FromContext(ctx).Error(err, "Refused host ports", "pod", klog.KRef(r.Namespace, r.Name), "sandbox", r.Sandbox)
		return nil, err
	}
	defer h.ports.added(c)
	result, err := h.Handler.Add(ctx, req)
	if err != nil {
		h.ports.drop(c)
		return nil, err
	}
	if err := h.ports.install(ctx, c, result); err != nil {
		h.ports.suspect()
		h.ports.failed(r, err)
		klog.FromContext(ctx).Error(err, "Failed to map host ports", "pod", klog.KRef(r.Namespace, r.Name), "sandbox", r.Sandbox)
		return nil, errors.Join(err, h.revert(ctx, req))
	}
	return result, nil
}

// newRecord returns the record of a request.
func newRecord(req *cniserver.Request, mappings []Mapping) (record, error) {
	config, err := cniserver.ParseConfig(req.Config)
	if err != nil {
		return record{}, err
	}
	r := record{Attachment: Attachment{req.ContainerID, req.IfName}, Netns: req.Netns, Network: config.Name, Mappings: mappings}
	for pair := range strings.SplitSeq(req.Args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "K8S_POD_NAMESPACE":
			r.Namespace = value
		case "K8S_POD_NAME":
			r.Name = value
		case "K8S_POD_UID":
			r.UID = value
		}
	}
	return r, nil
}

// reserve reserves the host ports. Those of a previous sandbox of the pod, and of sandboxes that do not exist any longer, are released first.
func (p *Ports) reserve(ctx context.Context, r record) (c *claim, err error) {
	if err := p.validateMappings(r.Mappings); err != nil {
		return nil, err
	}
	if r.Backend, err = p.backend(ctx); err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "the node can't map host ports", err.Error())
	}
	if err := p.refuseTaken(r); err != nil {
		return nil, err
	}
	for {
		c, holders, err := p.claim(r)
		if c != nil || err != nil {
			return c, err
		}
		attached := p.Attached() // after the claims: what was added before is attached
		for _, holder := range holders {
			held := p.recordOf(holder)
			if !held.isPod(r) && (attached[held.Attachment] || p.isAdding(holder)) {
				return nil, takenBy(overlapping(held.Mappings, r.Mappings), fmt.Sprintf("pod %s/%s", held.Namespace, held.Name))
			}
			if err := p.release(ctx, holder, func() bool { return held.isPod(r) || p.isDetached(holder) }); err != nil {
				return nil, fmt.Errorf("release host ports of a previous sandbox: %w", err)
			}
		}
	}
}

// isDetached reports whether the sandbox of the claim does not exist any longer.
func (p *Ports) isDetached(c *claim) bool { return !p.isAdding(c) && !p.Attached()[c.attachment] }

// revert deletes what a failed ADD created, with a separate timeout.
func (h *Handler) revert(ctx context.Context, req *cniserver.Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return h.Handler.Del(ctx, req)
}

// Del implements cniserver.Handler. It deletes rules of a sandbox without a record, too, if the runtime passes the host ports.
func (h *Handler) Del(ctx context.Context, req *cniserver.Request) error {
	if h.ports.get(Attachment{req.ContainerID, req.IfName}) == nil {
		if err := h.deleteUnknown(ctx, req); err != nil {
			return err
		}
	}
	return h.Handler.Del(ctx, req)
}

func (h *Handler) deleteUnknown(ctx context.Context, req *cniserver.Request) error {
	mappings, err := parseMappings(req.Config)
	if err != nil || len(mappings) == 0 {
		return err
	}
	r, err := newRecord(req, mappings)
	if err != nil {
		return err
	}
	if r.Backend, err = h.ports.backend(ctx); err != nil {
		klog.FromContext(ctx).Info("Skipped rules of unknown host ports, since the node can't map host ports", "sandbox", r.Sandbox, "err", err.Error())
		return nil
	}
	if err := h.ports.Plugin.Del(ctx, r); err != nil {
		return err
	}
	return h.ports.records.remove(r.Attachment) // one that could not be read
}

// Check implements cniserver.Handler.
func (h *Handler) Check(ctx context.Context, req *cniserver.Request) error {
	if err := h.Handler.Check(ctx, req); err != nil {
		return err
	}
	c := h.ports.get(Attachment{req.ContainerID, req.IfName})
	if c == nil {
		return nil
	}
	unlock, ok, err := h.ports.lock(ctx, c)
	if err != nil || !ok {
		return err
	}
	defer unlock()
	r := h.ports.recordOf(c)
	missing, err := h.ports.Plugin.Missing(ctx, []record{r})
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, "the node can't list the rules of host ports", err.Error())
	}
	if len(missing) > 0 {
		return types.NewError(ErrHostPortsMissing, fmt.Sprintf("host ports of pod %s/%s are missing", r.Namespace, r.Name), "")
	}
	return nil
}

// ErrHostPortsMissing is the error code of CHECK when rules are missing: that of the pod manager for a changed attachment (ErrAttachmentChanged).
const ErrHostPortsMissing uint = 100
