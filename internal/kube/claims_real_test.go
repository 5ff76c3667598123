package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/configmap"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

var long = flag.Bool("long", false, "500 agents race for slots instead of 40")

const claimsNamespace = "nodeagent-claims"

// apply creates the objects of a manifest of the package.
func (r *realAPIServer) apply(admin *Client, file string, kinds ...string) {
	r.t.Helper()
	data, err := os.ReadFile("../../packaging/kubernetes/" + file)
	if err != nil {
		r.t.Fatal(err)
	}
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var object map[string]any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			r.t.Fatal(err)
		}
		kind, _ := object["kind"].(string)
		if kind == "" || len(kinds) > 0 && !slices.Contains(kinds, kind) {
			continue
		}
		metadata, _ := object["metadata"].(map[string]any)
		path := map[string]string{"Namespace": "/api/v1", "ServiceAccount": "/api/v1"}[kind]
		if path == "" {
			path = fmt.Sprint("/apis/", object["apiVersion"])
		}
		if namespace, ok := metadata["namespace"]; ok {
			path += fmt.Sprint("/namespaces/", namespace)
		}
		resource := strings.ToLower(kind) + "s"
		if kind == "ValidatingAdmissionPolicy" {
			resource = "validatingadmissionpolicies"
		}
		body, err := json.Marshal(object)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.send(admin, "POST", path+"/"+resource, string(body)); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			r.t.Fatalf("%s %s: %v", kind, metadata["name"], err)
		}
	}
}

// send makes a request of any kind.
func (r *realAPIServer) send(c *Client, method, path, body string) ([]byte, error) {
	r.t.Helper()
	s, err := c.open()
	if err != nil {
		r.t.Fatal(err)
	}
	contentType := "application/json"
	if method == http.MethodPatch {
		contentType = "application/merge-patch+json"
	}
	result := s.groups[corev1.SchemeGroupVersion].Verb(method).AbsPath(path).SetHeader("Content-Type", contentType).
		SetHeader("Accept", "application/json").Body([]byte(body)).Do(within(r.t, 20*time.Second))
	if err := result.Error(); err != nil {
		return nil, err // Raw does not say why
	}
	return result.Raw()
}

// bound makes a Node with labels and returns the client of its agent, whose token is bound to it.
func (r *realAPIServer) bound(admin *Client, node string, labels map[string]string) *Client {
	r.t.Helper()
	object, err := json.Marshal(map[string]any{"kind": "Node", "apiVersion": "v1",
		"metadata": map[string]any{"name": node, "labels": labels}})
	if err != nil {
		r.t.Fatal(err)
	}
	made, err := r.send(admin, "POST", "/api/v1/nodes", string(object))
	if apierrors.IsAlreadyExists(err) {
		made, err = r.send(admin, "GET", "/api/v1/nodes/"+node, "")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	var of corev1.Node
	if err := json.Unmarshal(made, &of); err != nil {
		r.t.Fatal(err)
	}
	answer, err := r.send(admin, "POST", "/api/v1/namespaces/nodeagent/serviceaccounts/nodeagent/token", fmt.Sprintf(
		`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"expirationSeconds":3600,"boundObjectRef":
		  {"kind":"Node","apiVersion":"v1","name":%q,"uid":%q}}}`, node, of.UID))
	if err != nil {
		r.t.Fatal(err)
	}
	var token struct{ Status struct{ Token string } }
	if err := json.Unmarshal(answer, &token); err != nil || token.Status.Token == "" {
		r.t.Fatalf("no token: %v", err)
	}
	return r.client(token.Status.Token, node)
}

// fleet returns the claims of a client's node.
func (r *realAPIServer) fleet(c *Client, settings fleet.Settings, leases fleet.Leases) *fleet.Fleet {
	settings.Namespace = claimsNamespace
	if leases == nil {
		leases = c
	}
	return fleet.New(fleet.Config{
		Settings: settings,
		Cluster:  fleet.Cluster{Leases: leases, Node: c.GetNode, Nodes: c.Nodes, Paused: c.HasConfigMap},
		Now:      func() time.Duration { return host.Now().SinceBoot },
		Poll:     100 * time.Millisecond, Patience: 8 * time.Second,
	})
}

// budget are settings without a storm.
func budget(slots, isolated int) fleet.Settings {
	return fleet.Settings{Slots: slots, Isolated: isolated, Storm: 10_000}
}

// until repeats a request until its error is as wanted: rights and policies come into force within a second or so.
func until(t *testing.T, what string, ask func() error, want func(error) bool) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = ask(); want(err) {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func byPolicy(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

// TestRealAPIServerClaims: with the rights and policies of the chart and real tokens that are bound to nodes.
func TestRealAPIServerClaims(t *testing.T) {
	r := newRealAPIServer(t)
	admin := r.client("admin")
	r.ready(admin)
	r.apply(admin, "rbac.yaml")
	r.apply(admin, "rights.yaml")
	a := r.bound(admin, "node-a", map[string]string{"pool": "red"})
	r.unconfined(admin, a)
	r.apply(admin, "claims.yaml")
	b := r.bound(admin, "node-b", map[string]string{"pool": "red"})
	probe := r.fleet(a, budget(1, 1), nil)
	until(t, "claims are confined", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond*500)
		defer cancel()
		slot, err := probe.Acquire(ctx, "first", time.Second)
		if err == nil {
			slot.Release(t.Context())
		}
		return err
	}, func(err error) bool { return err == nil })

	t.Run("count", func(t *testing.T) {
		for i := range 23 {
			r.bound(admin, fmt.Sprintf("count-%d", i), nil)
		}
		if n, err := a.Nodes(within(t, time.Minute)); n != 25 || err != nil {
			t.Errorf("Nodes() = %d, %v; want 25", n, err)
		}
	})
	t.Run("pause", func(t *testing.T) { r.pauses(t, admin, a) })
	t.Run("isolation", func(t *testing.T) { r.isolations(t, a, b) })
	t.Run("kubelet", func(t *testing.T) { r.kubeletHasNoSlot(t) })
	t.Run("race", func(t *testing.T) { r.race(t, admin) })
	t.Run("taints", func(t *testing.T) { r.taints(t, admin, a) })
	t.Run("removal", func(t *testing.T) { r.removal(t, admin, a) })
	t.Run("stolen token", func(t *testing.T) { r.stolenToken(t, admin, a, b) })
}

// unconfined: without the policy the agent makes no claim, whatever it has the right to.
func (r *realAPIServer) unconfined(admin, a *Client) {
	r.t.Helper()
	r.apply(admin, "claims.yaml", "Namespace", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
	f := r.fleet(a, budget(1, 1), nil)
	until(r.t, "claims without a policy", func() error {
		_, err := f.Acquire(within(r.t, 10*time.Second), "test", time.Second)
		return err
	}, func(err error) bool { return errors.Is(err, fleet.ErrUnconfined) })
	if _, _, err := f.Hold(r.t.Context()); !errors.Is(err, fleet.ErrUnconfined) {
		r.t.Errorf("Hold() = %v, want ErrUnconfined", err)
	}
	if left := r.claims(admin); len(left) != 0 {
		r.t.Errorf("claims were made: %v", left)
	}
}

// claims returns the names of all claims.
func (r *realAPIServer) claims(admin *Client) []string {
	r.t.Helper()
	leases, date, err := admin.ListLeases(within(r.t, 20*time.Second), claimsNamespace, "")
	if err != nil || time.Since(date).Abs() > 10*time.Second {
		r.t.Fatalf("ListLeases() at %s: %v", date, err)
	}
	var names []string
	for _, l := range leases {
		names = append(names, l.Name)
	}
	return names
}

func (r *realAPIServer) pauses(t *testing.T, admin, a *Client) {
	const path = "/api/v1/namespaces/" + claimsNamespace + "/configmaps"
	r.create(admin, path, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"pause"}}`)
	f := r.fleet(a, budget(1, 1), nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := f.Acquire(ctx, "test", time.Second); !errors.Is(err, fleet.ErrPaused) {
		t.Errorf("Acquire() = %v, want ErrPaused", err)
	}
	if _, _, err := f.Hold(t.Context()); !errors.Is(err, fleet.ErrPaused) {
		t.Errorf("Hold() = %v, want ErrPaused", err)
	}
	if _, err := r.send(admin, "DELETE", path+"/pause", ""); err != nil {
		t.Fatal(err)
	}
	slot, err := f.Acquire(within(t, time.Minute), "test", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	slot.Release(t.Context())
	if left := r.claims(admin); len(left) != 0 {
		t.Errorf("claims are left: %v", left)
	}
}

func (r *realAPIServer) isolations(t *testing.T, a, b *Client) {
	ctx := within(t, time.Minute)
	settings := budget(1, 1)
	settings.Pool = "pool"
	first, second := r.fleet(a, settings, nil), r.fleet(b, settings, nil)
	for range 2 { // twice: what is held stays held
		if held, again, err := first.Hold(ctx); !held || again < time.Minute || err != nil {
			t.Errorf("Hold() = %v, %s, %v", held, again, err)
		}
	}
	if held, _, err := second.Hold(ctx); held || err != nil || !strings.Contains(second.Status().IsolationSpent,
		"node-a") {
		t.Errorf("Hold() of another = %v, %v, %q", held, err, second.Status().IsolationSpent)
	}
	if held, _, err := r.fleet(a, settings, nil).Hold(ctx); !held || err != nil {
		t.Errorf("Hold() after a restart = %v, %v", held, err)
	}
	if err := first.Release(ctx); err != nil {
		t.Error(err)
	}
	if held, _, err := second.Hold(ctx); !held || err != nil || second.Status().IsolationSpent != "" {
		t.Errorf("Hold() of another, after it was released = %v, %v", held, err)
	}
	if err := second.Release(ctx); err != nil {
		t.Error(err)
	}
}

// kubeletHasNoSlot: with kubelet's own identity there is neither a slot nor an isolation, and that is said once.
func (r *realAPIServer) kubeletHasNoSlot(t *testing.T) {
	f := r.fleet(r.client("node"), budget(1, 1), nil)
	for range 2 {
		if _, err := f.Acquire(within(t, 10*time.Second), "test", time.Second); !errors.Is(err, fleet.ErrIdentity) {
			t.Errorf("Acquire() = %v, want ErrIdentity", err)
		}
		if _, _, err := f.Hold(t.Context()); !errors.Is(err, fleet.ErrIdentity) {
			t.Errorf("Hold() = %v, want ErrIdentity", err)
		}
	}
	if why := f.Status().Refused; !strings.HasPrefix(why, "refused: this identity may not hold a slot") {
		t.Errorf("the status says %q", why)
	}
}

// taints: others who write the one list of taints at the same time lose nothing by the agent's writes, nor does the agent.
func (r *realAPIServer) taints(t *testing.T, admin, a *Client) {
	const rivals = 4
	each := 15
	if *long {
		each = 250
	}
	// write adds 1 to the value of a rival's taint, by the agent's own way to change a Node.
	write := func(ctx context.Context, c *Client, key string) error {
		for {
			node, err := c.GetNode(ctx)
			if err != nil {
				return err
			}
			n := 0
			taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
				if t.Key == key {
					n, _ = strconv.Atoi(t.Value)
				}
				return t.Key == key
			})
			taints = append(taints, corev1.Taint{Key: key, Value: strconv.Itoa(n + 1), Effect: corev1.TaintEffectNoSchedule})
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
				"spec": map[string]any{"taints": taints}})
			if err != nil {
				return err
			}
			if err = c.PatchNode(ctx, patch, false); !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	ctx := within(t, 5*time.Minute)
	reporter := taint.New(taint.Config{Node: a, Mode: taint.On, Hold: time.Millisecond, Rand: func() float64 { return 0 }})
	stop := reporttest.Start(t, reporter)
	asAdmin := r.client("admin", "node-a")
	var group sync.WaitGroup
	for i := range rivals {
		group.Go(func() {
			for range each {
				if err := write(ctx, asAdmin, fmt.Sprint("rival-", i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	world, flips := reporttest.NewWorld(), 0
	for ended := false; !ended; flips++ {
		state, _ := world.Run("disk", nil, []string{"DiskReadonly"}[:(flips+1)%2]...)
		reporter.Update(state, nil)
		select {
		case <-done:
			ended = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	state, _ := reporttest.NewWorld().Run("disk", nil, "DiskReadonly")
	reporter.Update(state, nil)
	want := map[string]string{taint.DefaultKey: "DiskReadonly"}
	for i := range rivals {
		want[fmt.Sprint("rival-", i)] = strconv.Itoa(each)
	}
	var diff string
	until(t, "the taints are those of all", func() error { return errors.New(diff) }, func(error) bool {
		node, err := a.GetNode(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, t := range node.Spec.Taints {
			got[t.Key] = t.Value
		}
		diff = cmp.Diff(want, got)
		return diff == ""
	})
	stop()
	t.Logf("%d writes of others against %d changes of mind of the agent", rivals*each, flips)
	if _, err := r.send(admin, "PATCH", "/api/v1/nodes/node-a", `{"spec":{"taints":null}}`); err != nil {
		t.Fatal(err)
	}
}

// removal: what an agent has written goes with it, by the rights of the chart, and nothing else does.
func (r *realAPIServer) removal(t *testing.T, admin, a *Client) {
	ctx := within(t, time.Minute)
	const node = "/api/v1/nodes/node-a"
	whole := func() string {
		t.Helper()
		var all string
		for _, path := range []string{node, "/api/v1/namespaces/nodeagent/configmaps",
			"/apis/coordination.k8s.io/v1/namespaces/" + claimsNamespace + "/leases"} {
			data, err := r.send(admin, "GET", path, "")
			if err != nil {
				t.Fatal(err)
			}
			all += versions.ReplaceAllString(string(data), "")
		}
		return all
	}
	r.create(admin, "/api/v1/namespaces/nodeagent/configmaps",
		`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"node-b"}}`)
	for path, patch := range map[string]string{
		node:             `{"metadata":{"annotations":{"a":"b"}},"spec":{"taints":[{"key":"team","value":"red","effect":"NoSchedule"}]}}`,
		node + "/status": `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
	} {
		if _, err := r.send(admin, "PATCH", path, patch); err != nil {
			t.Fatal(err)
		}
	}
	before := whole()
	world, conditions, taints, maps := reporttest.NewWorld(), reporttest.NewStore(), reporttest.NewStore(),
		reporttest.NewStore()
	state, _ := world.Run("disk", nil, "DiskReadonly")
	naming := condition.Config{Conditions: map[string]finding.Condition{"disk": {Type: "DiskBroken"}}, Spread: -1}
	ofNode, ofMap := naming, naming
	ofNode.Node, ofNode.Store, ofMap.Store = a, conditions, maps
	budget := r.fleet(a, budget(1, 1), nil)
	reporters := []report.Reporter{condition.New(ofNode),
		taint.New(taint.Config{Node: a, Mode: taint.On, Store: taints, Budget: budget}),
		configmap.New(configmap.Config{Cluster: a, Node: "node-a", Namespace: "nodeagent", Conditions: ofMap})}
	var stops []func()
	for _, reporter := range reporters {
		reporter.Update(state, nil)
		stops = append(stops, reporttest.Start(t, reporter))
	}
	if _, err := budget.Acquire(ctx, "crashes", time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"DiskBroken", "nodeagent.github.io/unhealthy", `"node-node-a"`, `"slot.node-a"`,
		`"isolate.node-a"`} {
		until(t, part+" is written", func() error { return nil }, func(error) bool {
			return strings.Contains(whole(), part)
		})
	}
	for _, stop := range stops {
		stop()
	}
	_, err1 := condition.Retire(ctx, a, conditions)
	_, err2 := taint.Retire(ctx, a, taints)
	_, err3 := configmap.Retire(ctx, a, "node-a", "nodeagent", maps)
	_, err4 := budget.Retire(ctx, "node-a")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, whole()); diff != "" {
		t.Errorf("after the removal:\n%s", diff)
	}
}

// versions are what changes with every write.
var versions = regexp.MustCompile(`"resourceVersion":"[0-9]*",?|"managedFields":\[.*?\]\},?|"lastHeartbeatTime":[^,}]*,?`)

// stolenToken: whoever has the token of one node takes its one claim of each kind and nothing else, even where RBAC lets
// him do everything.
func (r *realAPIServer) stolenToken(t *testing.T, admin, a, b *Client) {
	const path = "/apis/coordination.k8s.io/v1/namespaces/" + claimsNamespace + "/leases"
	lease := func(name, holder, labels string, seconds int, more string) string {
		return fmt.Sprintf(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":%q,"labels":{%s}%s},
		  "spec":{"holderIdentity":%q,"leaseDurationSeconds":%d}}`, name, labels, more, holder, seconds)
	}
	const slots, isolate = `"nodeagent.github.io/claim":"slot","nodeagent.github.io/pool":""`,
		`"nodeagent.github.io/claim":"isolate","nodeagent.github.io/pool":"other"`
	if _, err := r.send(b, "POST", path, lease("slot.node-b", "node-b", slots, 60, "")); err != nil {
		t.Fatal(err)
	}
	r.create(admin, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"kind":"ClusterRoleBinding",
	  "apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"too-much"},
	  "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
	  "subjects":[{"kind":"ServiceAccount","name":"nodeagent","namespace":"nodeagent"}]}`)
	until(t, "all rights", func() error {
		_, err := r.send(a, "DELETE", path+"/slot.node-b", "")
		return err
	}, byPolicy)
	for _, test := range []struct {
		what, method, path, body string
		refused                  bool
	}{
		{"its slot", "POST", path, lease("slot.node-a", "node-a", slots, 1800, ""), false},
		{"its slot for longer", "PATCH", path + "/slot.node-a", `{"spec":{"leaseDurationSeconds":1700}}`, true},
		{"its slot's labels", "PATCH", path + "/slot.node-a", `{"metadata":{"labels":{"a":"b"}}}`, true},
		{"its isolation", "POST", path, lease("isolate.node-a", "node-a", isolate, 60, ""), false},
		{"its renewal", "POST", path, lease("isolate-next.node-a", "node-a", isolate, 60, ""), false},
		{"its end", "DELETE", path + "/isolate.node-a", "", false},
		{"for another", "POST", path, lease("isolate.node-a", "node-b", isolate, 60, ""), true},
		{"without a holder", "POST", path, lease("isolate.node-a", "", isolate, 60, ""), true},
		{"for longer", "POST", path, lease("isolate.node-a", "node-a", isolate, 1801, ""), true},
		{"for ever", "POST", path, strings.ReplaceAll(lease("isolate.node-a", "node-a", isolate, 60, ""),
			`,"leaseDurationSeconds":60`, ""), true},
		{"as another kind", "POST", path, lease("isolate.node-a", "node-a", slots, 60, ""), true},
		{"without a pool", "POST", path, lease("isolate.node-a", "node-a", `"nodeagent.github.io/claim":"isolate"`, 60,
			""), true},
		{"not to be deleted", "POST", path, lease("isolate.node-a", "node-a", isolate, 60,
			`,"finalizers":["example.com/x"]`), true},
		{"another's name", "POST", path, lease("slot.node-c", "node-a", slots, 60, ""), true},
		{"a name of its own", "POST", path, lease("node-a", "node-a", slots, 60, ""), true},
		{"name in the name", "POST", path, lease("slot.node-a.b", "node-a", slots, 60, ""), true},
		{"another's end", "DELETE", path + "/slot.node-b", "", true},
		{"the end of all", "DELETE", path, "", true},
		{"a pause", "POST", "/api/v1/namespaces/" + claimsNamespace + "/configmaps",
			`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"slot.node-a"}}`, true},
	} {
		if _, err := r.send(a, test.method, test.path, test.body); test.refused != byPolicy(err) ||
			!test.refused && err != nil {
			t.Errorf("%s: refused by policy %v, want %v: %v", test.what, byPolicy(err), test.refused, err)
		}
	}
	if got, want := r.claims(admin), []string{"isolate-next.node-a", "slot.node-a", "slot.node-b"}; !slices.Equal(got,
		want) {
		t.Errorf("claims %v, want %v", got, want)
	}
	if removed, err := r.fleet(a, budget(1, 1), nil).Retire(within(t, time.Minute), "node-a"); err != nil ||
		!slices.Equal(removed, []string{"slot.node-a", "isolate-next.node-a"}) {
		t.Errorf("Retire() = %v, %v", removed, err)
	}
	if got := r.claims(admin); !slices.Equal(got, []string{"slot.node-b"}) {
		t.Errorf("after the removal of node-a: %v", got)
	}
}

// unreliable is an apiserver as seen over a bad network by an agent whose apiserver's clock is wrong.
type unreliable struct {
	*Client
	skew   time.Duration // of the apiserver that answers this agent
	random func() float64
	faults float64 // share of the requests that fail
}

var errLost = errors.New("connection lost")

// trouble decides what happens to a request: it is lost, or its answer is.
func (u unreliable) trouble() (request, answer error) {
	switch x := u.random(); {
	case x < u.faults/2:
		return errLost, nil
	case x < u.faults:
		return nil, errLost
	}
	return nil, nil
}

func (u unreliable) CreateLease(ctx context.Context, lease *coordinationv1.Lease, dryRun bool) (*coordinationv1.Lease,
	error) {
	request, answer := u.trouble()
	if request != nil {
		return nil, request
	}
	made, err := u.Client.CreateLease(ctx, lease, dryRun)
	return made, errors.Join(err, answer)
}

func (u unreliable) ListLeases(ctx context.Context, namespace, selector string) ([]coordinationv1.Lease, time.Time,
	error) {
	request, answer := u.trouble()
	if request != nil {
		return nil, time.Time{}, request
	}
	leases, date, err := u.Client.ListLeases(ctx, namespace, selector)
	return leases, date.Add(u.skew), errors.Join(err, answer)
}

func (u unreliable) DeleteLease(ctx context.Context, namespace, name, uid string) error {
	request, answer := u.trouble()
	if request != nil {
		return request
	}
	return errors.Join(u.Client.DeleteLease(ctx, namespace, name, uid), answer)
}

// race lets many agents compete for 5 slots, over a network that loses one request in ten, with apiservers whose clocks
// are up to a minute apart, and every tenth holder dies with its slot.
func (r *realAPIServer) race(t *testing.T, admin *Client) {
	agents, rounds := 40, 1
	if *long {
		agents, rounds = 500, 2
	}
	const slots = 5
	type interval struct{ from, to time.Duration }
	var (
		mu      sync.Mutex
		held    []interval
		crashed int
		group   sync.WaitGroup
	)
	clients := make([]*Client, agents)
	for i := range clients {
		clients[i] = r.bound(admin, fmt.Sprintf("racer-%d", i), nil)
	}
	now := func() time.Duration { return host.Now().SinceBoot }
	ctx := within(t, 20*time.Minute)
	for i, c := range clients {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		// A clock that is ahead takes others for dead too early; one that is behind only waits.
		skew := time.Minute
		if *long && i%2 == 0 {
			skew = time.Duration((2*random.Float64() - 1) * float64(time.Minute))
		}
		group.Go(func() {
			u := unreliable{c, skew, random.Float64, 0.1}
			f := r.fleet(c, budget(slots, 1), u)
			for range rounds {
				atMost := time.Second + time.Duration(random.Float64()*float64(time.Second))
				slot, err := f.Acquire(ctx, "race", atMost)
				if err != nil {
					t.Error(err)
					return
				}
				from := now()
				for end := from + time.Duration(random.Float64()*float64(atMost)/4); now() < end && slot.Valid(); {
					time.Sleep(10 * time.Millisecond)
				}
				dies := i%10 == 0
				for dies && slot.Valid() { // it goes on until its own clock stops it, and tells nobody
					time.Sleep(10 * time.Millisecond)
				}
				to := now()
				if !dies {
					slot.Release(ctx)
				} else {
					f = r.fleet(c, budget(slots, 1), u) // the agent starts again
				}
				mu.Lock()
				held = append(held, interval{from, to})
				if dies {
					crashed++
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	most := 0
	for _, i := range held {
		at := 0
		for _, j := range held {
			if j.from <= i.from && i.from < j.to {
				at++
			}
		}
		most = max(most, at)
	}
	if most > slots || len(held) != agents*rounds {
		t.Errorf("%d holders at once, want at most %d; %d of %d held one", most, slots, len(held), agents*rounds)
	}
	t.Logf("%d agents, %d slots held, %d died with one, at most %d at once", agents, len(held), crashed, most)
	for _, name := range r.claims(admin) {
		_ = admin.DeleteLease(ctx, claimsNamespace, name, "")
	}
}
