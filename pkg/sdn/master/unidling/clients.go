package unidling

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
)

// NewClients returns clients that share the connection, without a recorder of Events. Each has the rate limit of the configuration.
func NewClients(config *rest.Config, connection *http.Client) (Clients, error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // that Endpoints are deprecated, once for each request
	objects, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), connection)
	if err != nil {
		return Clients{}, fmt.Errorf("create metadata client: %w", err)
	}
	api, err := discovery.NewDiscoveryClientForConfigAndClient(config, connection)
	if err != nil {
		return Clients{}, fmt.Errorf("create discovery client: %w", err)
	}
	kube, err := kubernetes.NewForConfigAndClient(config, connection)
	if err != nil {
		return Clients{}, fmt.Errorf("create API server client: %w", err)
	}
	config.GroupVersion, config.NegotiatedSerializer = &schema.GroupVersion{}, scheme.Codecs.WithoutConversion()
	base, err := rest.RESTClientForConfigAndClient(config, connection)
	if err != nil {
		return Clients{}, fmt.Errorf("create scale client: %w", err)
	}
	kinds := newKinds(memory.NewMemCacheClient(api))
	scales := scale.New(base, kinds.mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(api))
	return Clients{Kube: kube, Metadata: objects, Scales: scales, Mapper: kinds}, nil
}

// discoveryInterval is the least time between two reads of all kinds of the API server: users can write any kind into an annotation.
const discoveryInterval = 5 * time.Minute

// kinds maps kinds to resources by cached discovery. For an unknown kind, whose CRD may be newer, it reads the API server's kinds again.
type kinds struct {
	mapper *restmapper.DeferredDiscoveryRESTMapper

	mu   sync.Mutex
	read time.Time
}

func newKinds(api discovery.CachedDiscoveryInterface) *kinds {
	return &kinds{mapper: restmapper.NewDeferredDiscoveryRESTMapper(api)}
}

// RESTMapping returns the preferred resource of a kind, or a NoMatch error.
func (k *kinds) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	mapping, err := k.mapper.RESTMapping(kind, versions...)
	if meta.IsNoMatchError(err) && k.reset() {
		mapping, err = k.mapper.RESTMapping(kind, versions...)
	}
	if err != nil {
		return nil, fmt.Errorf("find the resource of kind %s: %w", kind, err)
	}
	return mapping, nil
}

// reset lets the next call read the API server's kinds, and reports whether the last time is long enough ago.
func (k *kinds) reset() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.read) < discoveryInterval {
		return false
	}
	k.read = time.Now()
	k.mapper.Reset()
	return true
}
