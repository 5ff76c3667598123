package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/kube/fleet"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// The permissions of the center's identity and of a reader, from docs/event-center-operate.md.
const (
	centerRole = `{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"center"},"rules":[
 {"apiGroups":[""],"resources":["nodes"],"verbs":["get","list","watch"]},
 {"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["list"]},
 {"apiGroups":["authentication.k8s.io"],"resources":["tokenreviews"],"verbs":["create"]},
 {"apiGroups":["authorization.k8s.io"],"resources":["subjectaccessreviews"],"verbs":["create"]}]}`
	readerRole = `{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"reader"},"rules":[
 {"nonResourceURLs":["/eventcenter/v1/nodes","/eventcenter/v1/faults"],"verbs":["get"]}]}`
	subscriberRole = `{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"subscriber"},"rules":[
 {"nonResourceURLs":["/eventcenter/v1/subscriptions"],"verbs":["get","post"]}]}`
)

// A node sends only for itself, RBAC names the readers, and while the apiserver is away, everybody whom it has vouched
// for still gets in.
func TestRealAPIServer(t *testing.T) {
	c := newRealCluster(t)
	files := t.TempDir()
	ca := newAuthority(t)
	write := func(name string, text []byte) string {
		path := filepath.Join(files, name)
		must(t, os.WriteFile(path, text, 0o600))
		return path
	}
	settings := write("clusters.yaml", fmt.Appendf(nil, `clusters:
  - {name: prod, kubeconfig: %q, audience: center, agents: [default/agent], clientCAFile: %q, readers: true, poolLabel: pool}
`, c.Kubeconfig("center", c.token("center", "", "")), write("ca", pemOf("CERTIFICATE", ca.cert.Raw))))
	must(t, os.Mkdir(filepath.Join(files, "tls"), 0o700))
	writeCertificate(t, filepath.Join(files, "tls"), 1)
	flags := []string{"--clusters", settings, "--tls-cert", filepath.Join(files, "tls/cert"), "--tls-key",
		filepath.Join(files, "tls/key")}
	p := start(t, filepath.Join(files, "data"), flags...)
	p.knows(t, "node-a", "node-b")

	t.Run("who sends", func(t *testing.T) { c.senders(t, p, ca) })
	t.Run("who reads", func(t *testing.T) { c.readers(t, p) })
	t.Run("who subscribes", func(t *testing.T) { c.subscribers(t, p) })
	t.Run("agent", func(t *testing.T) { c.agents(t, p, ca) })
	t.Run("client", c.client)
	late := c.token("agent", "late-a", "center")
	c.Stop()
	t.Run("apiserver away", func(t *testing.T) {
		for _, restart := range []bool{false, true} {
			if restart {
				p.stop(syscall.SIGTERM)
				p = start(t, p.dir, flags...)
			}
			if status, answer := p.as(late, nil, "POST", "/v1/events", mustEncode(raised("node-a", 90))); status != 200 {
				t.Errorf("restarted %v: %d %s", restart, status, answer)
			}
			if status, answer := p.as(c.changed(late, ca.key, nil), nil, "POST", "/v1/events", mustEncode(raised("node-a",
				91))); status == 200 {
				t.Errorf("restarted %v: a forged token: %d %s", restart, status, answer)
			}
			if _, text := p.as(p.token(), nil, "GET", "/metrics", nil); !strings.Contains(text,
				`eventcenter_identities_total{by="token",cluster="prod",result="unreviewed"} 1`) {
				t.Errorf("restarted %v: not metered: %s", restart, grep(text, "identities"))
			}
		}
	})
}

func grep(text, word string) (lines string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			lines += line
		}
	}
	return lines
}

// knows waits until the center lists these nodes.
func (p *process) knows(t *testing.T, names ...string) {
	t.Helper()
	var out string
	if !eventually(patience, func() bool {
		out, _ = cli(t, "nodes", "--dir", p.dir, "--ca", filepath.Join(p.dir, "../tls/cert"))
		return !slices.ContainsFunc(names, func(name string) bool { return !strings.Contains(out, name) })
	}) {
		t.Fatalf("not all of %v in %s; log: %s", names, out, p.log)
	}
}

func (c *realCluster) senders(t *testing.T, p *process, ca *authority) {
	const node, nodes, hour = "system:node:node-a", "system:nodes", time.Hour
	client := x509.ExtKeyUsageClientAuth
	gone := c.token("agent", "gone-a", "center")
	c.Delete("/api/v1/namespaces/default/pods/gone-a")
	earlier := map[string]any{"namespace": "default", "node": map[string]any{"name": "node-a", "uid": "of-another"},
		"serviceaccount": map[string]any{"name": "agent", "uid": c.uids["agent"]}}
	for _, test := range []struct {
		name, token string
		pair        []byte
		status      int
		want        string
	}{
		{"nobody", "", nil, 401, "a bearer token is needed"},
		{"a word", "hello", nil, 401, "refuses the token"},
		{"its agent", c.token("agent", "agent-a", "center"), nil, 200, `"stored":1`},
		{"its agent, again", c.token("agent", "agent-a", "center"), nil, 200, `"duplicates":1`},
		{"another ServiceAccount with our audience", c.token("nobody", "other-a", "center"), nil, 403, "does not speak"},
		{"another node's agent", c.token("agent", "agent-b", "center"), nil, 403, "does not speak for its source"},
		{"the agent's token for the apiserver", c.token("agent", "agent-a", ""), nil, 403, "does not speak"},
		{"an agent on no node", c.token("agent", "nowhere", "center"), nil, 403, "names no node"},
		{"a token that is bound to nothing", c.token("agent", "", "center"), nil, 403, "names no node"},
		{"the pod is gone", gone, nil, 401, "refuses the token"},
		{"expired", c.forged(c.Key, map[string]any{"exp": time.Now().Add(-time.Second).Unix()}), nil, 401, "has expired at"},
		{"not yet", c.forged(c.Key, map[string]any{"nbf": time.Now().Add(hour).Unix()}), nil, 401, "not valid before"},
		{"for ever", c.forged(c.Key, map[string]any{"exp": nil}), nil, 401, "never expires"},
		{"an earlier node of the name", c.forged(c.Key, map[string]any{"kubernetes.io": earlier}), nil, 403, "earlier Node"},
		{"forged", c.forged(ca.key, nil), nil, 401, "refuses the token"},
		{"kubelet", "", ca.issue(node, nodes, hour, client), 200, `"duplicates":1`},
		{"another kubelet", "", ca.issue("system:node:node-b", nodes, hour, client), 403, "does not speak for its source"},
		{"a kubelet of no Node", "", ca.issue("system:node:node-c", nodes, hour, client), 403, "has no Node"},
		{"a wrong CN", "", ca.issue("node-a", nodes, hour, client), 403, "system:node:NAME"},
		{"a wrong O", "", ca.issue(node, "system:masters", hour, client), 403, "system:node:NAME"},
		{"kubelet's serving certificate", "", ca.issue(node, nodes, hour, x509.ExtKeyUsageServerAuth), 401, "usage"},
		{"a certificate for nothing", "", ca.issue(node, nodes, hour), 401, "not for client authentication"},
		{"an expired certificate", "", ca.issue(node, nodes, -hour, client), 401, "expired"},
		{"another authority's", "", newAuthority(t).issue(node, nodes, hour, client), 401, "unknown authority"},
	} {
		status, answer := p.as(test.token, test.pair, "POST", "/v1/events", mustEncode(raised("node-a", 1)))
		if status != test.status || !strings.Contains(answer, test.want) {
			t.Errorf("%s: %d %s, want %d with %q", test.name, status, answer, test.status, test.want)
		}
	}
}

func (c *realCluster) readers(t *testing.T, p *process) {
	viewer := c.token("viewer", "", "")
	for _, test := range []struct {
		name, token, path string
		status            int
	}{
		{"by RBAC", viewer, "/v1/nodes", 200},
		{"one node too", viewer, "/v1/nodes/prod/node-a", 200},
		{"with our audience", c.token("viewer", "", "center"), "/v1/faults", 200},
		{"a path that RBAC does not name", viewer, "/v1/events", 403},
		{"nobody", c.token("nobody", "", ""), "/v1/nodes", 403},
		{"an agent", c.token("agent", "agent-a", "center"), "/v1/nodes", 403},
		{"for another audience", c.token("viewer", "", "another"), "/v1/nodes", 401},
		{"a cluster's administrator", "admin", "/v1/events", 200},
	} {
		if status, answer := p.as(test.token, nil, "GET", test.path, nil); status != test.status {
			t.Errorf("%s: %d %s, want %d", test.name, status, answer, test.status)
		}
	}
}

// subscribers checks that RBAC decides who may register: by a verb that readers do not have.
func (c *realCluster) subscribers(t *testing.T, p *process) {
	registrar := c.token("registrar", "", "")
	for _, test := range []struct {
		name, token, method, path string
		status                    int
	}{
		{"a reader", c.token("viewer", "", ""), "POST", "/v1/subscriptions", 403},
		{"an agent", c.token("agent", "agent-a", "center"), "POST", "/v1/subscriptions", 403},
		{"by RBAC", registrar, "GET", "/v1/subscriptions", 200},
		{"by RBAC, to a target that nobody permits", registrar, "POST", "/v1/subscriptions", 422},
		{"pause", registrar, "POST", "/v1/subscriptions/a/pause", 404},
		{"a verb that RBAC does not name", registrar, "DELETE", "/v1/subscriptions/a", 403},
		{"a path that RBAC does not name", registrar, "POST", "/v1/dead-letters/a/b", 403},
		{"a cluster's administrator", "admin", "DELETE", "/v1/subscriptions/a", 404},
	} {
		status, answer := p.as(test.token, nil, test.method, test.path, []byte(`{"name":"a","url":"https://a.example.com/"}`))
		if status != test.status {
			t.Errorf("%s: %d %s, want %d", test.name, status, answer, test.status)
		}
	}
}

// agents runs the agent's real reporter: with a token, and with kubelet's certificate, which is replaced in between.
func (c *realCluster) agents(t *testing.T, p *process, ca *authority) {
	dir := t.TempDir()
	pair := filepath.Join(dir, "kubelet.pem")
	put := func(name string, text []byte) string {
		must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
		return filepath.Join(dir, name)
	}
	put("kubelet.pem", ca.issue("system:node:node-b", "system:nodes", -time.Hour, x509.ExtKeyUsageClientAuth))
	for name, s := range map[string]eventcenter.Settings{
		"node-a": {TokenFile: put("token", []byte(c.token("agent", "agent-a", "center")))},
		"node-b": {ClientCertFile: pair, ClientKeyFile: pair},
	} {
		s.Endpoints, s.Cluster, s.CAFile = []string{p.url + "/v1/events"}, "prod", filepath.Join(p.dir, "../tls/cert")
		r := eventcenter.New(eventcenter.Config{Settings: s, Node: name, Boot: "b", Version: "v1", ReadFile: os.ReadFile})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		r.Update(reporttest.NewWorld().Run("disk", nil, "Of"+name))
	}
	p.hasFault(t, "Ofnode-a")
	put("kubelet.pem", ca.issue("system:node:node-b", "system:nodes", time.Hour, x509.ExtKeyUsageClientAuth))
	p.hasFault(t, "Ofnode-b")
}

func (p *process) hasFault(t *testing.T, reason string) {
	t.Helper()
	var answer string
	if !eventually(patience, func() bool {
		_, answer = p.as(p.token(), nil, "GET", "/v1/faults", nil)
		return strings.Contains(answer, reason)
	}) {
		t.Errorf("no %s in %s", reason, answer)
	}
}

// client checks the center's view of a cluster: its Nodes as they are added and removed, and their Leases.
func (c *realCluster) client(t *testing.T) {
	f, err := fleet.New(fleet.Config{Kubeconfig: c.Kubeconfig("again", c.token("center", "", "")), PoolLabel: "pool",
		Selector: "pool", Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { f.Watch(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	await := func(what string, is func(all map[string]fleet.Node) bool) {
		t.Helper()
		if !eventually(patience, func() bool { all, ok := f.Nodes(); return ok && is(all) }) {
			all, ok := f.Nodes()
			t.Errorf("%s: %v %+v", what, ok, all)
		}
	}
	await("listed", func(all map[string]fleet.Node) bool {
		return len(all) == 2 && all["node-a"] == fleet.Node{UID: c.uids["node-a"], Pool: "x", Expected: true}
	})
	c.create("/api/v1/nodes", `{"kind":"Node","apiVersion":"v1","metadata":{"name":%q,"labels":{
	 "topology.kubernetes.io/zone":"z"}},"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "node-c")
	await("created", func(all map[string]fleet.Node) bool {
		return all["node-c"] == fleet.Node{UID: c.uids["node-c"], Zone: "z"}
	})
	if uid, ready, err := f.Ask(ctx, "node-c"); uid != c.uids["node-c"] || ready != "False" || err != nil {
		t.Errorf("%s %s %v", uid, ready, err)
	}
	c.Delete("/api/v1/nodes/node-c")
	await("deleted", func(all map[string]fleet.Node) bool { return len(all) == 2 })
	if uid, _, err := f.Ask(ctx, "node-c"); uid != "" || err != nil {
		t.Errorf("%s %v", uid, err)
	}
	c.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", `{"kind":"Lease",
	 "apiVersion":"coordination.k8s.io/v1","metadata":{"name":%q},"spec":{"renewTime":"2026-01-02T03:04:05.678901Z"}}`, "node-a")
	if !eventually(patience, func() bool { // the apiserver's cache lags slightly
		leases, err := f.Leases(ctx)
		must(t, err)
		return leases["node-a"].Equal(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC))
	}) {
		t.Error("no Lease")
	}
}
