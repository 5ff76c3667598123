package kube

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/configmap"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// TestRealAPIServerClaims uses the rights and policies of the chart, and real tokens that are bound to nodes.
func TestRealAPIServerClaims(t *testing.T) {
	r := newRealAPIServer(t)
	admin := r.client("admin")
	r.apply(admin, "rbac.yaml")
	r.apply(admin, "rights.yaml")
	a := r.bound(admin, "node-a", map[string]string{"pool": "red"})
	r.unconfined(admin, a)
	r.apply(admin, "claims.yaml")
	b := r.bound(admin, "node-b", map[string]string{"pool": "red"})
	probe := r.fleet(a, budget(1, 1), nil)
	until(t, "claims are confined", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
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

// unconfined: without the policy the agent makes no claim, whatever its rights.
func (r *realAPIServer) unconfined(admin, a *Client) {
	r.t.Helper()
	r.apply(admin, "claims.yaml", "Namespace", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
	f := r.fleet(a, budget(1, 1), nil)
	until(r.t, "claims without a policy", func() error {
		_, err := f.Acquire(within(r.t, time.Minute), "test", time.Second)
		return err
	}, func(err error) bool { return errors.Is(err, fleet.ErrUnconfined) })
	if _, _, err := f.Hold(r.t.Context()); !errors.Is(err, fleet.ErrUnconfined) {
		r.t.Errorf("Hold() = %v, want ErrUnconfined", err)
	}
	if left := r.claims(admin); len(left) != 0 {
		r.t.Errorf("claims were made: %v", left)
	}
}

func (r *realAPIServer) pauses(t *testing.T, admin, a *Client) {
	const path = "/api/v1/namespaces/" + claimsNamespace + "/configmaps"
	r.Create(path, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"pause"}}`, nil)
	f := r.fleet(a, budget(1, 1), nil)
	if _, err := f.Acquire(within(t, time.Minute), "test", time.Second); !errors.Is(err, fleet.ErrPaused) {
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
	for range 2 { // twice: a held claim stays held
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

// kubeletHasNoSlot: with kubelet's own identity there is neither a slot nor an isolation, and the agent reports that
// once.
func (r *realAPIServer) kubeletHasNoSlot(t *testing.T) {
	f := r.fleet(r.client("node"), budget(1, 1), nil)
	for range 2 {
		if _, err := f.Acquire(within(t, time.Minute), "test", time.Second); !errors.Is(err, fleet.ErrIdentity) {
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

// removal: everything written by an agent is removed with it, with the rights of the chart, and everything else stays.
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
	r.Create("/api/v1/namespaces/nodeagent/configmaps",
		`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"node-b"}}`, nil)
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

// versions are the fields that change with every write.
var versions = regexp.MustCompile(`"resourceVersion":"[0-9]*",?|"managedFields":\[.*?\]\},?|"lastHeartbeatTime":[^,}]*,?`)

// stolenToken: the token of one node can take that node's one claim of each kind and no more, even if RBAC permits
// everything.
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
	r.Create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"kind":"ClusterRoleBinding",
	  "apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"too-much"},
	  "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
	  "subjects":[{"kind":"ServiceAccount","name":"nodeagent","namespace":"nodeagent"}]}`, nil)
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
