package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/version"
)

// Limits of a bundle.
const (
	bundlePage     = 500     // objects in a file
	bundleLogBytes = 8 << 20 // of a container
	bundleNodes    = 10      // whose flows and logs are read if none is named
)

// supportBundle writes what an engineer needs to diagnose a cluster to a tar archive.
type supportBundle struct {
	genericiooptions.IOStreams
	kube  kubernetes.Interface
	nodes []string
	file  string // "-": standard output

	archive     *tar.Writer
	now         time.Time
	credentials credentials
	missing     []string // what could not be read
	removed     int      // number of credentials
	leftOut     []string
}

func supportBundleCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	b := &supportBundle{IOStreams: streams, credentials: newCredentials()}
	cmd := &cobra.Command{
		Use:   "support-bundle [NODE...]",
		Short: "Write the state of the pod network to an archive, for a report",
		Long: "Write the state of all nodes, the objects of the pod network, Events, and the flows and logs of these nodes to a compressed tar\n" +
			"archive. Without names these are nodes with a problem and others, 10 in all. Secrets are not read; private keys and tokens in\n" +
			"other files are removed. The archive has names, labels and addresses of pods and policies. What you have no right to read is left\n" +
			"out and listed; the exit code is 1 then.",
		Example:           "  kubectl ovsdn support-bundle\n  kubectl ovsdn support-bundle node1 --file=node1.tar.gz",
		ValidArgsFunction: completeNodes(flags),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			b.nodes, b.now = args, time.Now()
			if b.kube, _, err = clients(flags); err != nil {
				return err
			}
			if b.file == "" {
				b.file = "ovsdn-support-" + b.now.UTC().Format("20060102-150405") + ".tar.gz"
			}
			return b.write(cmd.Context())
		},
	}
	cmd.Flags().StringVarP(&b.file, "file", "f", "", "the archive's `name`; - is standard output (default ovsdn-support-TIME.tar.gz)")
	return cmd
}

// write writes the archive. A file that exists is not replaced, and one that is incomplete does not stay.
func (b *supportBundle) write(ctx context.Context) (err error) {
	out := b.Out
	if b.file != "-" {
		f, err := os.OpenFile(b.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s exists; name another file with --file", b.file)
		}
		if err != nil {
			return err
		}
		defer func() {
			if closeErr := f.Close(); err == nil {
				err = closeErr
			}
			if err != nil && !errors.Is(err, errReported) {
				_ = os.Remove(b.file)
			}
		}()
		out = f
	}
	compressed := gzip.NewWriter(out)
	b.archive = tar.NewWriter(compressed)
	if err := b.collect(ctx); err != nil {
		return err
	}
	if err := errors.Join(b.archive.Close(), compressed.Close()); err != nil {
		return err
	}
	for _, m := range b.missing {
		fmt.Fprintln(b.ErrOut, "warning: "+m)
	}
	if b.file != "-" {
		fmt.Fprintf(b.Out, "%s written\n", b.file)
	}
	if len(b.missing) > 0 {
		return errReported
	}
	return nil
}

// collect adds all files. The errors of reads are recorded, those of writes returned.
func (b *supportBundle) collect(ctx context.Context) error {
	if err := b.addJSON("version.json", version.Get()); err != nil {
		return err
	}
	for _, path := range []string{
		"/version", "/api/v1/nodes", "/api/v1/namespaces/" + controllerNamespace + "/pods", "/api/v1/namespaces/" + controllerNamespace + "/events",
		"/api/v1/namespaces/" + controllerNamespace + "/configmaps", "/api/v1/namespaces/default/events",
		"/apis/apps/v1/namespaces/" + controllerNamespace + "/daemonsets", "/apis/apps/v1/namespaces/" + controllerNamespace + "/deployments",
		"/apis/coordination.k8s.io/v1/namespaces/" + controllerNamespace + "/leases", "/apis/apiregistration.k8s.io/v1/apiservices/" + diagnostics.Version + "." + diagnostics.Group,
		"/apis/network.openshift.io/v1/clusternetworks", "/apis/network.openshift.io/v1/hostsubnets", "/apis/network.openshift.io/v1/netnamespaces",
		"/apis/network.openshift.io/v1/egressnetworkpolicies", "/apis/networking.k8s.io/v1/networkpolicies",
		"/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
	} {
		if err := b.addPath(ctx, path); err != nil {
			return err
		}
	}
	b.leftOut = append(b.leftOut, "Secrets: not read")
	statuses, _, err := readStatuses(ctx, b.kube, nil)
	if err != nil {
		b.miss(ctx, "nodestatuses", err)
	}
	if err := b.addJSON("nodestatuses.json", statuses); err != nil {
		return err
	}
	nodes := b.chosen(statuses)
	for _, node := range nodes {
		var answer diagnostics.NodeFlows
		if err := readDiagnostics(ctx, b.kube, &answer, nil, "nodeflows", node); err != nil {
			b.miss(ctx, "flows of "+node, err)
			continue
		}
		if answer.Truncated {
			b.leftOut = append(b.leftOut, fmt.Sprintf("flows of %s: installed ones beyond %d", node, diagnostics.MaxFlows))
		}
		if err := b.addJSON("flows/"+node+".json", answer); err != nil {
			return err
		}
	}
	if err := b.addLogs(ctx, nodes); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return b.add("contents.txt", b.contents())
}

// chosen returns the nodes whose flows and logs are read.
func (b *supportBundle) chosen(statuses []diagnostics.NodeStatus) []string {
	if len(b.nodes) > 0 {
		return b.nodes
	}
	var failing, others []string
	for _, st := range statuses {
		if len(problemsOf(st)) > 0 {
			failing = append(failing, st.Name)
		} else {
			others = append(others, st.Name)
		}
	}
	all := append(failing, others...)
	if len(all) > bundleNodes {
		b.leftOut = append(b.leftOut, fmt.Sprintf("flows and logs of %d nodes: name them to include them", len(all)-bundleNodes))
		all = all[:bundleNodes]
	}
	return all
}

// addPath adds the objects of a path of the API, in pages.
func (b *supportBundle) addPath(ctx context.Context, path string) error {
	name := "objects" + path
	next := ""
	for page := 1; ; page++ {
		request := b.kube.Discovery().RESTClient().Get().AbsPath(path)
		if path != "/version" {
			request = request.Param("limit", fmt.Sprint(bundlePage)).Param("continue", next)
		}
		result := request.Do(ctx)
		raw, err := result.Raw()
		if detailed := result.Error(); detailed != nil { // Raw has no message of the server
			err = detailed
		}
		if err != nil {
			b.miss(ctx, path, err)
			return nil
		}
		file := name + ".json"
		if page > 1 {
			file = fmt.Sprintf("%s.%d.json", name, page)
		}
		if err := b.add(file, raw); err != nil {
			return err
		}
		var list struct{ Metadata metav1.ListMeta }
		if json.Unmarshal(raw, &list) != nil || list.Metadata.Continue == "" {
			return nil
		}
		next = list.Metadata.Continue
	}
}

// addLogs adds the logs of the controllers and of the agents of the nodes, those of containers that have restarted, too.
func (b *supportBundle) addLogs(ctx context.Context, nodes []string) error {
	pods, err := b.kube.CoreV1().Pods(controllerNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil // reported with the objects
	}
	wanted := map[string]bool{}
	for _, n := range nodes {
		wanted[n] = true
	}
	for _, pod := range pods.Items {
		isAgent := len(pod.OwnerReferences) > 0 && pod.OwnerReferences[0].Kind == "DaemonSet"
		if isAgent && !wanted[pod.Spec.NodeName] {
			continue
		}
		for _, c := range pod.Status.ContainerStatuses {
			for _, previous := range []bool{false, true} {
				if previous && c.RestartCount == 0 {
					continue
				}
				if err := b.addLog(ctx, pod.Name, c.Name, previous); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (b *supportBundle) addLog(ctx context.Context, pod, container string, previous bool) error {
	file := "logs/" + pod + "/" + container + ".log"
	if previous {
		file = "logs/" + pod + "/" + container + ".previous.log"
	}
	stream, err := b.kube.CoreV1().Pods(controllerNamespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true}).Stream(ctx)
	if err != nil {
		b.miss(ctx, file, err)
		return nil
	}
	defer stream.Close()
	var log tail
	if _, err := io.Copy(&log, stream); err != nil {
		b.miss(ctx, file, err)
	}
	text, isWhole := log.text()
	if !isWhole {
		b.leftOut = append(b.leftOut, fmt.Sprintf("%s: all but the last %d MiB", file, bundleLogBytes>>20))
	}
	return b.add(file, text)
}

// tail retains the last bundleLogBytes of what is written to it.
type tail struct {
	last  []byte // at most twice bundleLogBytes
	isCut bool
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	if len(t.last) > 2*bundleLogBytes {
		t.cut()
	}
	return len(p), nil
}

func (t *tail) cut() {
	t.last, t.isCut = append(t.last[:0], t.last[len(t.last)-bundleLogBytes:]...), true
}

// text returns what was retained, from the begin of a line on, and whether that is all.
func (t *tail) text() (text []byte, isWhole bool) {
	if len(t.last) > bundleLogBytes {
		t.cut()
	}
	if !t.isCut {
		return t.last, true
	}
	_, whole, _ := bytes.Cut(t.last, []byte("\n"))
	return whole, false
}

// miss records what could not be read.
func (b *supportBundle) miss(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		b.missing = append(b.missing, strings.ReplaceAll(what+": "+err.Error(), "\n", "; "))
	}
}

func (b *supportBundle) addJSON(name string, value any) error {
	encoded, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return b.add(name, encoded)
}

// add adds a file without credentials.
func (b *supportBundle) add(name string, content []byte) error {
	content, removed := b.credentials.remove(content)
	b.removed += removed
	header := &tar.Header{Name: "ovsdn-support/" + strings.TrimPrefix(name, "/"), Mode: 0o600, Size: int64(len(content)), ModTime: b.now}
	if err := b.archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := b.archive.Write(content)
	return err
}

func (b *supportBundle) contents() []byte {
	var text strings.Builder
	fmt.Fprintf(&text, "Support bundle of ovsdn, %s\n\nLeft out:\n", b.now.UTC().Format(time.RFC3339))
	for _, l := range append(b.leftOut, fmt.Sprintf("private keys and tokens in other files: %d removed", b.removed)) {
		fmt.Fprintln(&text, "- "+l)
	}
	fmt.Fprintln(&text, "\nNot readable:")
	for _, m := range b.missing {
		fmt.Fprintln(&text, "- "+m)
	}
	if len(b.missing) == 0 {
		fmt.Fprintln(&text, "- nothing")
	}
	return []byte(text.String())
}
