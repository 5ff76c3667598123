// Package watchtest is a minimal apiserver with list and watch, for behaviour that cannot be forced on a real one:
// ending a watch, losing its history, being silent.
package watchtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const pageSize = 2 // whatever limit the client asks for

// Cluster is a simulated apiserver.
type Cluster struct {
	*httptest.Server
	t testing.TB

	mu      sync.Mutex // guards the fields below
	version int
	pods    []corev1.Pod
	changes []change
	oldest  int // changes before this version are lost
	changed chan struct{}
	ended   chan struct{} // closed to end all watches
	last    string        // the last line of watches that end
	Lists   int           // requested pages of pods
}

type change struct {
	resource string
	version  int
	line     []byte
	fields   map[string]string // that a watch can select by
}

// New starts a cluster for the duration of the test.
func New(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t, version: 1, changed: make(chan struct{}), ended: make(chan struct{})}
	c.Server = httptest.NewServer(c)
	t.Cleanup(func() {
		c.End()
		c.Server.CloseClientConnections()
		c.Close()
	})
	return c
}

// Kubeconfig writes a kubeconfig for it, and returns the file name.
func (c *Cluster) Kubeconfig() string {
	name := filepath.Join(c.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(name, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, c.URL), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return name
}

// Pod adds or changes a pod; kind is ADDED, MODIFIED or DELETED.
func (c *Cluster) Pod(kind string, p *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.ResourceVersion = strconv.Itoa(c.version + 1)
	for i := range c.pods {
		if c.pods[i].UID == p.UID {
			c.pods = append(c.pods[:i], c.pods[i+1:]...)
			break
		}
	}
	if kind != "DELETED" {
		c.pods = append(c.pods, *p)
	}
	c.send("pods", kind, p)
}

// Event sends an Event.
func (c *Cluster) Event(e *corev1.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	e.ResourceVersion = strconv.Itoa(c.version + 1)
	c.send("events", "ADDED", e)
	c.changes[len(c.changes)-1].fields = map[string]string{"involvedObject.kind": e.InvolvedObject.Kind, "reason": e.Reason}
}

// Beat renews the scheduler's Lease.
func (c *Cluster) Beat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send("leases", "MODIFIED", map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": "kube-scheduler", "namespace": "kube-system", "resourceVersion": strconv.Itoa(c.version + 1)}})
}

// send needs mu.
func (c *Cluster) send(resource, kind string, object any) {
	line, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		c.t.Error(err)
	}
	c.version++
	c.changes = append(c.changes, change{resource: resource, version: c.version, line: append(line, '\n')})
	close(c.changed)
	c.changed = make(chan struct{})
}

// End ends all watches; clients can start new ones.
func (c *Cluster) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.ended)
	c.ended = make(chan struct{})
}

// Garble ends all watches in the middle of a change, as a lost connection does.
func (c *Cluster) Garble() {
	c.mu.Lock()
	c.last = "}\n"
	c.mu.Unlock()
	c.End()
}

// Forget makes all earlier changes expired for a watch, and ends all watches.
func (c *Cluster) Forget() {
	c.mu.Lock()
	c.version++
	c.oldest = c.version
	c.mu.Unlock()
	c.End()
}

// ServeHTTP answers lists and watches.
func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if strings.HasPrefix(r.URL.Path, "/readyz") {
		_, _ = w.Write([]byte("ok"))
		return
	}
	if r.Method != http.MethodGet {
		c.t.Errorf("%s %s: it must change nothing", r.Method, r.URL)
	}
	if r.URL.Query().Get("watch") == "true" {
		c.watch(w, r, resource)
		return
	}
	c.list(w, r, resource)
}

func (c *Cluster) list(w http.ResponseWriter, r *http.Request, resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kinds := map[string]string{"pods": "PodList", "nodes": "NodeList", "events": "EventList", "leases": "LeaseList", "endpointslices": "EndpointSliceList"}
	version := "v1"
	switch resource {
	case "leases":
		version = "coordination.k8s.io/v1"
	case "endpointslices":
		version = "discovery.k8s.io/v1"
	}
	var items any = []int{}
	meta := map[string]any{"resourceVersion": strconv.Itoa(c.version)}
	if resource == "pods" {
		c.Lists++
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		from = min(from, len(c.pods))
		to := min(from+pageSize, len(c.pods))
		items = c.pods[from:to]
		if to < len(c.pods) {
			meta["continue"] = strconv.Itoa(to)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": version, "kind": kinds[resource], "metadata": meta, "items": items})
}

func (c *Cluster) watch(w http.ResponseWriter, r *http.Request, resource string) {
	version, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	field, value, selects := strings.Cut(r.URL.Query().Get("fieldSelector"), "=")
	c.mu.Lock()
	expired, ended := version < c.oldest, c.ended
	c.mu.Unlock()
	if expired {
		w.WriteHeader(http.StatusGone)
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Expired", "code": http.StatusGone})
		return
	}
	for {
		c.mu.Lock()
		var lines []byte
		for _, change := range c.changes {
			if change.version > version && change.resource == resource && (!selects || change.fields[field] == value) {
				lines = append(lines, change.line...)
			}
		}
		version = c.version
		changed := c.changed
		c.mu.Unlock()
		_, _ = w.Write(lines)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-ended:
			c.mu.Lock()
			last := c.last
			c.mu.Unlock()
			_, _ = io.WriteString(w, last)
			return
		case <-changed:
		}
	}
}
