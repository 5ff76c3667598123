package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/nodeagent/nodeagent/internal/kube/fleet"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
	"github.com/nodeagent/nodeagent/test/apiserver"
	"github.com/nodeagent/nodeagent/test/certificate"
	"github.com/nodeagent/nodeagent/test/need"
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
	settings := put(t, files, "clusters.yaml", fmt.Sprintf(`clusters:
  - {name: prod, kubeconfig: %q, audience: center, agents: [default/agent], clientCAFile: %q, readers: true, poolLabel: pool}
`, c.Kubeconfig("center", c.token("center", "", "")), put(t, files, "ca", string(ca.Cert))))
	must(t, os.Mkdir(filepath.Join(files, "tls"), 0o700))
	writeCertificate(t, filepath.Join(files, "tls"), 1)
	flags := []string{"--clusters", settings, "--tls-cert", filepath.Join(files, "tls/cert"), "--tls-key",
		filepath.Join(files, "tls/key")}
	p := start(t, filepath.Join(files, "data"), flags...)
	await(t, func() error {
		out, _ := cli(t, "nodes", "--dir", p.dir, "--ca", filepath.Join(files, "tls/cert"))
		return contains(out, "node-a", "node-b")
	})

	t.Run("who sends", func(t *testing.T) { c.senders(t, p, ca) })
	t.Run("who reads and subscribes", func(t *testing.T) { c.readers(t, p) })
	t.Run("agent", func(t *testing.T) { c.agents(t, p, ca) })
	t.Run("client", c.client)
	late := c.token("agent", "late-a", "center")
	c.Stop()
	t.Run("apiserver away", func(t *testing.T) {
		forged := c.changed(late, ca.Private, nil)
		for _, restart := range []bool{false, true} {
			if restart {
				p.stop(syscall.SIGTERM)
				p = start(t, p.dir, flags...)
			}
			if status, answer := p.as(late, nil, "POST", "/v1/events", mustEncode(raised("node-a", 90))); status != 200 {
				t.Errorf("restarted %v: %d %s", restart, status, answer)
			}
			if status, answer := p.as(forged, nil, "POST", "/v1/events", mustEncode(raised("node-a", 91))); status == 200 {
				t.Errorf("restarted %v: a forged token: %d %s", restart, status, answer)
			}
			_, metrics := p.as(p.token(), nil, "GET", "/metrics", nil)
			must(t, contains(metrics, `eventcenter_identities_total{by="token",cluster="prod",result="unreviewed"} 1`))
		}
	})
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
		{"forged", c.forged(ca.Private, nil), nil, 401, "refuses the token"},
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

// readers checks that RBAC decides who may read, and who may register, by a verb that readers do not have.
func (c *realCluster) readers(t *testing.T, p *process) {
	const subscriptions = "/v1/subscriptions"
	viewer, registrar := c.token("viewer", "", ""), c.token("registrar", "", "")
	agent := c.token("agent", "agent-a", "center")
	for _, test := range []struct {
		name, token, method, path string
		status                    int
	}{
		{"by RBAC", viewer, "GET", "/v1/nodes", 200},
		{"one node too", viewer, "GET", "/v1/nodes/prod/node-a", 200},
		{"with our audience", c.token("viewer", "", "center"), "GET", "/v1/faults", 200},
		{"a path that RBAC does not name", viewer, "GET", "/v1/events", 403},
		{"nobody", c.token("nobody", "", ""), "GET", "/v1/nodes", 403},
		{"an agent", agent, "GET", "/v1/nodes", 403},
		{"for another audience", c.token("viewer", "", "another"), "GET", "/v1/nodes", 401},
		{"a cluster's administrator", "admin", "GET", "/v1/events", 200},

		{"a reader", viewer, "POST", subscriptions, 403},
		{"an agent", agent, "POST", subscriptions, 403},
		{"by RBAC", registrar, "GET", subscriptions, 200},
		{"by RBAC, to a target that nobody permits", registrar, "POST", subscriptions, 422},
		{"pause", registrar, "POST", subscriptions + "/a/pause", 404},
		{"a verb that RBAC does not name", registrar, "DELETE", subscriptions + "/a", 403},
		{"a path that RBAC does not name", registrar, "POST", "/v1/dead-letters/a/b", 403},
		{"a cluster's administrator", "admin", "DELETE", subscriptions + "/a", 404},
	} {
		status, answer := p.as(test.token, nil, test.method, test.path, []byte(`{"name":"a","url":"https://a.example.com/"}`))
		if status != test.status {
			t.Errorf("%s: %s %s: %d %s, want %d", test.name, test.method, test.path, status, answer, test.status)
		}
	}
}

// agents runs the agent's real reporter: with a token, and with kubelet's certificate, which is replaced in between.
func (c *realCluster) agents(t *testing.T, p *process, ca *authority) {
	dir, centerCA := t.TempDir(), filepath.Join(p.dir, "../tls/cert")
	token := put(t, dir, "token", c.token("agent", "agent-a", "center"))
	kubelet := func(until time.Duration) string {
		pair := ca.issue("system:node:node-b", "system:nodes", until, x509.ExtKeyUsageClientAuth)
		return put(t, dir, "kubelet.pem", string(pair))
	}
	pair := kubelet(-time.Hour)
	for name, s := range map[string]eventcenter.Settings{
		"node-a": {Cluster: "prod", CAFile: centerCA, TokenFile: token},
		"node-b": {Cluster: "prod", CAFile: centerCA, ClientCertFile: pair, ClientKeyFile: pair},
	} {
		agent, _ := startAgent(t, p, name, s)
		agent.Update(reporttest.NewWorld().Run("disk", nil, "Of"+name))
	}
	hasFault := func(reason string) {
		t.Helper()
		await(t, func() error {
			_, answer := p.as(p.token(), nil, "GET", "/v1/faults", nil)
			return contains(answer, reason)
		})
	}
	hasFault("Ofnode-a")
	kubelet(time.Hour)
	hasFault("Ofnode-b")
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
	has := func(what string, is func(all map[string]fleet.Node) bool) {
		t.Helper()
		await(t, func() error {
			all, ok := f.Nodes()
			return unless(ok && is(all), "%s: %v %+v", what, ok, all)
		})
	}
	has("listed", func(all map[string]fleet.Node) bool {
		return len(all) == 2 && all["node-a"] == fleet.Node{UID: c.uids["node-a"], Pool: "x", Expected: true}
	})
	c.create("/api/v1/nodes", `{"kind":"Node","apiVersion":"v1","metadata":{"name":%q,"labels":{
	 "topology.kubernetes.io/zone":"z"}},"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "node-c")
	has("created", func(all map[string]fleet.Node) bool {
		return all["node-c"] == fleet.Node{UID: c.uids["node-c"], Zone: "z"}
	})
	if uid, ready, err := f.Ask(ctx, "node-c"); uid != c.uids["node-c"] || ready != "False" || err != nil {
		t.Errorf("%s %s %v", uid, ready, err)
	}
	c.Delete("/api/v1/nodes/node-c")
	has("deleted", func(all map[string]fleet.Node) bool { return len(all) == 2 })
	if uid, _, err := f.Ask(ctx, "node-c"); uid != "" || err != nil {
		t.Errorf("%s %v", uid, err)
	}
	c.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", `{"kind":"Lease",
	 "apiVersion":"coordination.k8s.io/v1","metadata":{"name":%q},"spec":{"renewTime":"2026-01-02T03:04:05.678901Z"}}`, "node-a")
	await(t, func() error { // the apiserver's cache lags slightly
		leases, err := f.Leases(ctx)
		must(t, err)
		return unless(leases["node-a"].Equal(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)), "%v", leases)
	})
}

var withAPIServer = flag.Bool("apiserver", false, "run the tests on a real kube-apiserver, which labctl has built")

// realCluster is an apiserver with two nodes; one of them has an agent's pod and another pod.
type realCluster struct {
	*apiserver.Server
	t    *testing.T
	uids map[string]string // by name
}

func newRealCluster(t *testing.T) *realCluster {
	t.Helper()
	need.Flag(t, *withAPIServer, "-apiserver: runs the kube-apiserver that a lab has built")
	c := &realCluster{apiserver.Start(t, "../.."), t, map[string]string{}}
	for _, role := range []string{centerRole, readerRole, subscriberRole} {
		c.Create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role, nil)
	}
	for role, account := range map[string]string{"center": "center", "reader": "viewer", "subscriber": "registrar"} {
		c.Create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", fmt.Sprintf(`{"kind":"ClusterRoleBinding",
		 "apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":%q},
		 "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},
		 "subjects":[{"kind":"ServiceAccount","name":%q,"namespace":"default"}]}`, role, account), nil)
	}
	for _, account := range []string{"center", "viewer", "registrar", "nobody", "agent"} {
		c.create("/api/v1/namespaces/default/serviceaccounts", `{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":%q}}`,
			account)
	}
	for _, node := range []string{"node-a", "node-b"} {
		c.create("/api/v1/nodes", `{"kind":"Node","apiVersion":"v1","metadata":{"name":%q,"labels":{"pool":"x"}}}`, node)
	}
	for _, pod := range []struct{ name, account, node string }{{"agent-a", "agent", "node-a"}, {"gone-a", "agent", "node-a"},
		{"late-a", "agent", "node-a"}, {"agent-b", "agent", "node-b"}, {"other-a", "nobody", "node-a"},
		{"nowhere", "agent", ""}} {
		c.create("/api/v1/namespaces/default/pods", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q},"spec":{
		 "containers":[{"name":"c","image":"i"}],"serviceAccountName":%q,"nodeName":%q}}`, pod.name, pod.account, pod.node)
	}
	return c
}

// create creates an object with the name in the first argument.
func (c *realCluster) create(path, format string, args ...any) {
	c.t.Helper()
	var made struct{ Metadata struct{ Name, UID string } }
	c.Create(path, fmt.Sprintf(format, args...), &made)
	c.uids[made.Metadata.Name] = made.Metadata.UID
}

// token requests a token of the ServiceAccount, bound to a pod if one is named.
func (c *realCluster) token(account, pod, audience string) string {
	c.t.Helper()
	spec := map[string]any{"expirationSeconds": 3600}
	if audience != "" {
		spec["audiences"] = []string{audience}
	}
	if pod != "" {
		spec["boundObjectRef"] = map[string]string{"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": c.uids[pod]}
	}
	body, err := json.Marshal(map[string]any{"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec})
	must(c.t, err)
	var made struct{ Status struct{ Token string } }
	c.Create("/api/v1/namespaces/default/serviceaccounts/"+account+"/token", string(body), &made)
	return made.Status.Token
}

// forged is a token of the agent on node-a with some claims changed, signed by a key.
func (c *realCluster) forged(key *ecdsa.PrivateKey, change map[string]any) string {
	c.t.Helper()
	return c.changed(c.token("agent", "agent-a", "center"), key, change)
}

// changed returns a token with some claims changed, signed by a key under the original key's ID.
func (c *realCluster) changed(token string, key *ecdsa.PrivateKey, change map[string]any) string {
	c.t.Helper()
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	must(c.t, err)
	claims := map[string]any{}
	must(c.t, parsed.UnsafeClaimsWithoutVerification(&claims))
	maps.Copy(claims, change)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key,
		KeyID: parsed.Headers[0].KeyID}}, nil)
	must(c.t, err)
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	must(c.t, err)
	return text
}

// authority is that of the kubelets' certificates.
type authority struct {
	certificate.Pair
	t *testing.T
}

func newAuthority(t *testing.T) *authority {
	return &authority{certificate.Issue(t, nil, x509.Certificate{Subject: pkix.Name{CommonName: "ca"}}), t}
}

// issue returns a client's certificate and key, PEM, in one text, as kubelet keeps them.
func (a *authority) issue(name, organization string, until time.Duration, usage ...x509.ExtKeyUsage) []byte {
	pair := certificate.Issue(a.t, &a.Pair, x509.Certificate{ExtKeyUsage: usage, NotAfter: time.Now().Add(until),
		Subject: pkix.Name{CommonName: name, Organization: []string{organization}}})
	return append(pair.Cert, pair.Key...)
}

// as makes a request to the center with a token or a client certificate. It comes again while the center has no time for
// it: on a fast machine, the tests use up the budget of unknown tokens.
func (p *process) as(token string, pair []byte, method, path string, body []byte) (status int, answer string) {
	p.t.Helper()
	ca := read(p.t, filepath.Join(p.dir, "../tls/cert"))
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AppendCertsFromPEM(ca)
	if pair != nil {
		loaded, err := tls.X509KeyPair(pair, pair)
		must(p.t, err)
		// Sent even if the center would not accept it.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &loaded, nil }
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	await(p.t, func() error {
		got, text, err := p.ask(client, token, method, path, "application/cloudevents+json", body)
		must(p.t, err)
		status, answer = got, string(text)
		return unless(status != http.StatusTooManyRequests, "%s: %s", path, answer)
	})
	return status, answer
}
