package main

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/nodeagent/nodeagent/test/apiserver"
	"github.com/nodeagent/nodeagent/test/certificate"
	"github.com/nodeagent/nodeagent/test/need"
)

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
	ca, err := os.ReadFile(filepath.Join(p.dir, "../tls/cert"))
	must(p.t, err)
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
		var text []byte
		status, text, err = p.ask(client, token, method, path, "application/cloudevents+json", body)
		must(p.t, err)
		answer = string(text)
		return unless(status != http.StatusTooManyRequests, "%s: %s", path, answer)
	})
	return status, answer
}
