package kube

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/nodeagent/nodeagent/test/apiserver"
	"github.com/nodeagent/nodeagent/test/need"
)

var withAPIServer = flag.Bool("apiserver", false, "run the tests on a real kube-apiserver, which labctl has built")

// The agent's role at the apiserver, as in the package comment.
const agentRole = `{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"agent"},"rules":[
 {"apiGroups":[""],"resources":["nodes"],"resourceNames":["node-a"],"verbs":["get"]},
 {"apiGroups":["storage.k8s.io"],"resources":["csinodes"],"resourceNames":["node-a"],"verbs":["get"]},
 {"apiGroups":[""],"resources":["pods"],"verbs":["get","list","watch"]},
 {"apiGroups":["apps"],"resources":["daemonsets","controllerrevisions"],"verbs":["list"]},
 {"apiGroups":[""],"resources":["nodes/status"],"resourceNames":["node-a"],"verbs":["patch"]},
 {"apiGroups":[""],"resources":["configmaps"],"verbs":["create","patch"]},
 {"apiGroups":[""],"resources":["events"],"verbs":["create","patch"]}]}`

const agentBinding = `{"kind":"ClusterRoleBinding","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"agent"},
 "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"agent"},
 "subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"agent"}]}`

// realAPIServer is an apiserver with the clients under test.
type realAPIServer struct {
	*apiserver.Server
	t *testing.T
}

func newRealAPIServer(t *testing.T) *realAPIServer {
	t.Helper()
	need.Flag(t, *withAPIServer, "-apiserver: runs the kube-apiserver that a lab has built")
	return &realAPIServer{apiserver.Start(t, "../.."), t}
}

// client returns a client with the token, for the given node.
func (r *realAPIServer) client(token string, node ...string) *Client {
	r.t.Helper()
	kubeconfig := r.Kubeconfig(fmt.Sprintf("%x", sha256.Sum256([]byte(token))), token)
	c, err := New(Config{Node: append(node, testNode)[0], Kubeconfig: kubeconfig}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	c.limiter = flowcontrol.NewFakeAlwaysRateLimiter()
	c.urgent, c.claims = c.limiter, c.limiter
	r.t.Cleanup(func() { c.Close() })
	return c
}

// populate creates the objects that the requests read.
func (r *realAPIServer) populate() {
	r.t.Helper()
	r.Create("/apis/rbac.authorization.k8s.io/v1/clusterroles", agentRole, nil)
	r.Create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", agentBinding, nil)
	for _, node := range []string{"node-a", "node-b"} {
		r.Create("/api/v1/nodes", fmt.Sprintf(`{"kind":"Node","apiVersion":"v1","metadata":{"name":%q}}`, node), nil)
		r.Create("/apis/storage.k8s.io/v1/csinodes", fmt.Sprintf(
			`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":%q},"spec":{"drivers":[]}}`, node), nil)
	}
	const spec = `{"containers":[{"name":"c","image":"i"}],"nodeName":%q}`
	for name, node := range map[string]string{"a1": "node-a", "a2": "node-a", "b1": "node-b"} {
		r.Create("/api/v1/namespaces/default/pods", fmt.Sprintf(
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q},"spec":`+spec+`}`, name, node), nil)
	}
	r.Create("/apis/apps/v1/namespaces/default/daemonsets", `{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{"name":"d"},
	  "spec":{"selector":{"matchLabels":{"a":"d"}},"template":{"metadata":{"labels":{"a":"d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, nil)
}

func TestRealAPIServer(t *testing.T) {
	r := newRealAPIServer(t)
	r.populate()
	ctx := within(t, time.Minute)

	for user, lists := range map[string]bool{"agent": true, "node": false} {
		t.Run(user, func(t *testing.T) {
			c := r.client(user)
			readEverything(t, ctx, c, lists)
			writeEverything(t, ctx, c, user)
			if err := r.client(user, "node-b").PatchNodeStatus(ctx, []byte(`{"status":{}}`)); !apierrors.IsForbidden(
				err) {
				t.Errorf("PatchNodeStatus of another node = %v, want Forbidden", err)
			}
		})
	}
	for _, user := range []string{"agent", "node"} {
		t.Run("watch of "+user, func(*testing.T) { r.watchPods(r.client(user), user) })
	}
	t.Run("unknown", func(t *testing.T) {
		if _, err := r.client("nobody").Cluster().Pods(ctx); !apierrors.IsUnauthorized(err) {
			t.Errorf("Pods() = %v, want Unauthorized", err)
		}
	})
}

// readEverything makes each request; lists says whether the user may list cluster-wide resources.
func readEverything(t *testing.T, ctx context.Context, c *Client, lists bool) {
	t.Helper()
	cluster := c.Cluster()
	pods, err := cluster.Pods(ctx)
	if diff := cmp.Diff([]string{"a1", "a2"}, names(pods)); diff != "" || err != nil {
		t.Errorf("Pods(): %v %s", err, diff)
	}
	if _, err := cluster.Pod(ctx, "default", "a1"); err != nil {
		t.Error(err)
	}
	if _, err := cluster.Pod(ctx, "default", "none"); lists && !apierrors.IsNotFound(err) || !lists &&
		!apierrors.IsForbidden(err) {
		t.Errorf("Pod(none) = %v, want NotFound, and for a node's identity Forbidden", err)
	}
	for name, want := range map[string][]string{"a1": {"a1"}, "none": nil} {
		named, err := cluster.PodsNamed(ctx, "default", name)
		if diff := cmp.Diff(want, names(named)); diff != "" || err != nil {
			t.Errorf("PodsNamed(%s): %v %s", name, err, diff)
		}
	}
	if _, err := cluster.Node(ctx); err != nil {
		t.Error(err)
	}
	if _, err := cluster.CSINode(ctx); err != nil {
		t.Error(err)
	}
	sets, err := cluster.DaemonSets(ctx)
	if lists && (err != nil || len(sets) != 1) {
		t.Errorf("DaemonSets() = %v, %v", sets, err)
	}
	if _, err2 := cluster.ControllerRevisions(ctx, "default"); lists && err2 != nil {
		t.Error(err2)
	} else if !lists && (!apierrors.IsForbidden(err) || !apierrors.IsForbidden(err2)) {
		t.Errorf("lists of the cluster: %v, %v; want Forbidden", err, err2)
	}
}

// watchPods proves that a client sees the changes of its own node's pods, and of no others.
func (r *realAPIServer) watchPods(c *Client, user string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.WatchPods(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	await := func(what string, true func() bool) {
		r.t.Helper()
		for deadline := time.Now().Add(time.Minute); !true(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				r.t.Fatalf("%s: never %s", user, what)
			}
		}
	}
	pending := func() int {
		c.changes.mu.Lock()
		defer c.changes.mu.Unlock()
		return len(c.changes.pending)
	}
	await("live", func() bool { return c.changes.unchangedSince(time.Now().Add(time.Hour)) })
	before := pending()
	for _, node := range []string{"node-b", "node-a"} {
		r.Create("/api/v1/namespaces/default/pods", fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"watched-%s-%s"},
		  "spec":{"containers":[{"name":"c","image":"i"}],"nodeName":%q}}`, user, node, node), nil)
	}
	await("one pod more", func() bool { return pending() == before+1 })
}

func writeEverything(t *testing.T, ctx context.Context, c *Client, user string) {
	t.Helper()
	condition := corev1.NodeCondition{Type: corev1.NodeConditionType("Tested" + strings.ToUpper(user[:1])),
		Status: corev1.ConditionTrue}
	patch, err := json.Marshal(
		map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.PatchNodeStatus(ctx, patch); err != nil {
		t.Error(err)
	}
	conditions, err := c.NodeConditions(ctx)
	found := false
	for _, got := range conditions {
		found = found || got.Type == condition.Type
	}
	if !found || err != nil {
		t.Errorf("NodeConditions() = %v, %v", conditions, err)
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "e." + user},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: testNode}, Reason: "Tested",
	}
	if err := c.CreateEvent(ctx, event); err != nil {
		t.Error(err)
	}
	if err := c.CreateEvent(ctx, event); !apierrors.IsAlreadyExists(err) {
		t.Errorf("CreateEvent() again = %v, want AlreadyExists", err)
	}
	applyConfigMap(t, ctx, c, user == "agent")
}

// applyConfigMap creates a ConfigMap and then removes a key from it. A node's own identity may not do that without the
// chart's Role for it.
func applyConfigMap(t *testing.T, ctx context.Context, c *Client, may bool) {
	t.Helper()
	for _, data := range []string{`{"A":"1","B":"2"}`, `{"A":"1"}`} {
		err := c.ApplyConfigMap(ctx, "default", "node-"+testNode, []byte(
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"node-`+testNode+`"},"data":`+data+`}`))
		if may && err != nil || !may && !apierrors.IsForbidden(err) {
			t.Errorf("ApplyConfigMap() = %v", err)
		}
	}
}
