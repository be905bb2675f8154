package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// dashboardFiles are the page: HTML, one style sheet and JavaScript modules.
//
//go:embed dashboard
var dashboardFiles embed.FS

const (
	apiTimeout     = 60 * time.Second // maximum duration of a request to the API server; listing 500 NodeStatuses takes up to 50 s
	maxRequests    = 16               // maximum concurrent requests
	requestsPerSec = 100
	requestsBurst  = 200

	// contentPolicy lets the page load its own files and nothing else, and lets the browser refuse strings as HTML.
	contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
		"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)

// dashboard serves the page and the requests of its scripts. No path, header or body of the browser is passed to the API server: each route makes a request of
// its own from validated names (dashboardapi.go).
type dashboard struct {
	api         rest.Interface // with the user's credentials
	page        string         // path of the page: random, so that the browser has cached no file of another program at it
	token       string         // that each request of the page has; it is in the fragment of the URL
	hosts       []string       // accepted values of the Host header; others are refused against DNS rebinding
	credentials credentials
	limiter     *rate.Limiter
	running     chan struct{}
	handler     http.Handler
}

// newDashboard returns the server at an address with a port.
func newDashboard(config *rest.Config, address string) (*dashboard, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the dashboard limits requests itself
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	files, err := fs.Sub(dashboardFiles, "dashboard")
	if err != nil {
		return nil, err
	}
	d := &dashboard{
		api: kube.CoreV1().RESTClient(), page: rand.Text(), token: rand.Text(), credentials: newCredentials(),
		hosts:   []string{address, strings.TrimSuffix(address, ":80")}, // browsers omit port 80
		limiter: rate.NewLimiter(requestsPerSec, requestsBurst), running: make(chan struct{}, maxRequests),
	}
	mux := http.NewServeMux()
	mux.Handle("GET /"+d.page+"/", http.StripPrefix("/"+d.page, http.FileServerFS(files)))
	mux.Handle("/api/", d.answer(func(http.ResponseWriter, *http.Request) error {
		return &requestError{http.StatusNotFound, "the dashboard has no such path"}
	}))
	for pattern, handle := range d.routes() {
		mux.Handle(pattern, d.answer(handle))
	}
	d.handler = http.NewCrossOriginProtection().Handler(mux)
	return d, nil
}

// ServeHTTP implements http.Handler.
func (d *dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	} {
		w.Header().Set(name, value)
	}
	if !slices.Contains(d.hosts, r.Host) {
		d.writeError(w, &requestError{http.StatusForbidden, "the request is for another host; use the URL that kubectl ovsdn dashboard prints"})
		return
	}
	d.handler.ServeHTTP(w, r)
}

// requestError is an error that names its cause, with the HTTP status for the page.
type requestError struct {
	code    int
	message string
}

func (e *requestError) Error() string { return e.message }

// answer returns a handler that limits requests, and accepts those with the token. An error of handle means that it has written nothing.
func (d *dashboard) answer(handle func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !isBearer || subtle.ConstantTimeCompare([]byte(token), []byte(d.token)) != 1 {
			d.writeError(w, &requestError{http.StatusUnauthorized, "invalid or missing token; open the URL that kubectl ovsdn dashboard printed"})
			return
		}
		tooMany := &requestError{http.StatusTooManyRequests, "too many requests of the page; retry later"}
		if !d.limiter.Allow() {
			d.writeError(w, tooMany)
			return
		}
		select {
		case d.running <- struct{}{}:
			defer func() { <-d.running }()
		default:
			d.writeError(w, tooMany)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), apiTimeout)
		defer cancel()
		if err := handle(w, r.WithContext(ctx)); err != nil {
			d.writeError(w, err)
		}
	})
}

// writeError writes the error as JSON, with the status of the API server if it is one of its errors.
func (d *dashboard) writeError(w http.ResponseWriter, err error) {
	code, text := http.StatusBadGateway, ""
	var status apierrors.APIStatus
	if refused, ok := errors.AsType[*requestError](err); ok {
		code, text = refused.code, refused.message
	} else if errors.As(err, &status) {
		text = err.Error()
		switch c := int(status.Status().Code); {
		case c == http.StatusUnauthorized: // 401 means an invalid token of the page
			text = "the API server does not accept your credentials: " + text + "; log in, and start kubectl ovsdn dashboard again"
		case c >= 400 && c < 600:
			code = c
		}
	} else {
		text = fmt.Sprintf("the API server does not answer: %v", err)
	}
	clean, _ := d.credentials.remove([]byte(text))
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	writeAnswer(w, code, struct {
		Message string `json:"message"`
	}{string(clean)})
}

func writeAnswer(w http.ResponseWriter, code int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // of strings and numbers: only the connection fails
}
