package helm

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const centerChart = kubernetes + "/eventcenter"

func center(t *testing.T, args ...string) (rendered string, err error) {
	t.Helper()
	out, stderr, err := helm(t, append([]string{"template", "eventcenter", centerChart, "--namespace", "nodeagent"},
		args...)...)
	if err != nil {
		return stderr, err
	}
	return out, nil
}

func TestCenterTemplate(t *testing.T) {
	for file, args := range map[string][]string{
		"testdata/eventcenter.golden.yaml": {"--set", "cluster=prod,tls.secretName=certificate"},
		"testdata/eventcenter-full.golden.yaml": {"--set", "cluster=prod,tls.secretName=certificate," +
			"service.type=NodePort,service.nodePort=30685,nodes.poolLabel=example.com/pool,storage.existingClaim=mine," +
			"keep.bytes=100,priorityClassName=system-cluster-critical,image.pullSecrets[0]=registry," +
			"oidc.settings.issuer=https://login.example.com,oidc.settings.clientID=center,oidc.settings.groups[0]=sre," +
			"oidc.settings.address=https://events.example.com,oidc.secretName=oidc,oidc.caConfigMap=authorities"},
		"testdata/eventcenter-replicated.golden.yaml": {"--set", "cluster=prod,tls.secretName=certificate," +
			"replicated=true,migrate=true,replicas.secretName=routes"},
		"testdata/eventcenter-nats.golden.yaml": {"--set", "cluster=prod,tls.secretName=certificate," +
			"replicated=true,replicas.sameNode=true,nats.url=tls://nats.example.com,nats.caConfigMap=nats-ca,replicas.secretName=nats"},
	} {
		out, err := center(t, args...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, out)
		}
		compare(t, file, out)
	}
	if out, stderr, err := helm(t, "lint", "--strict", centerChart, "--set", "cluster=prod"); err != nil {
		t.Errorf("%v\n%s%s", err, out, stderr)
	}
}

// The chart asks for values that it cannot guess, and rejects values that it does not understand.
func TestCenterRefuses(t *testing.T) {
	for set, want := range map[string]string{
		"storage.size=1Gi":                 "the name of this cluster must be set",
		"cluster=prod,keep.bytes=15Gigs":   "keep.bytes: 15Gigs",
		"cluster=prod,imagee.tag=1":        "additional properties 'imagee' not allowed",
		"cluster=prod,keep.time=a month":   "/keep/time",
		"cluster=prod,agents=nodeagent":    "/agents",
		"cluster=prod,agents[0]=nodeagent": "/agents/0",

		"cluster=prod,replicated=true,storage.existingClaim=mine": "three replicas need a volume each",
	} {
		if out, err := center(t, "--set", set); err == nil || !strings.Contains(out, want) {
			t.Errorf("--set %s: %v, want an error with %q\n%s", set, err, want, out)
		}
	}
}

// The certificate from the chart is valid under the authority that agents are given, for the names that they use.
func TestCenterCertificate(t *testing.T) {
	out, err := center(t, "--set", "cluster=prod,service.clusterIP=10.0.0.9,tls.names[0]=center.example.com",
		"--show-only", "templates/tls.yaml")
	if err != nil {
		t.Fatal(err, out)
	}
	var secret, ca struct{ Data map[string]string }
	decoder := yaml.NewDecoder(strings.NewReader(out))
	if decoder.Decode(&secret) != nil || decoder.Decode(&ca) != nil {
		t.Fatalf("not two objects:\n%s", out)
	}
	decoded := func(name string) []byte {
		text, err := base64.StdEncoding.DecodeString(secret.Data[name])
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	pair, err := tls.X509KeyPair(decoded("tls.crt"), decoded("tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca.Data["ca.crt"])) {
		t.Fatalf("no authority in %q", ca.Data)
	}
	for _, name := range []string{"eventcenter.nodeagent.svc", "localhost", "10.0.0.9", "center.example.com"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
