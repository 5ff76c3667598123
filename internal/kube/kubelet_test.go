package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/test/loopback"
)

type testCertificate struct {
	pair tls.Certificate
	leaf *x509.Certificate
	pem  string
}

// newTestCertificate makes a certificate for a name, signed by the given one or by itself.
func newTestCertificate(t *testing.T, name string, signer ...testCertificate) testCertificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	parent, parentKey := template, any(key)
	if len(signer) > 0 {
		parent, parentKey = signer[0].leaf, signer[0].pair.PrivateKey
	} else {
		template.IsCA, template.BasicConstraintsValid = true, true
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return testCertificate{
		pair: tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key},
		leaf: leaf,
		pem:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})),
	}
}

// newFakeKubelet serves the answer with the certificate, and returns a client of it; paths has its root directory.
func newFakeKubelet(t *testing.T, certificate testCertificate, answer http.HandlerFunc) (kubelet host.Kubelet,
	server *fakeServer, paths *host.Paths) {
	t.Helper()
	server = newFakeServer(t, answer) // for the credentials
	server.Close()
	server.Server = httptest.NewUnstartedServer(http.HandlerFunc(server.serve))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate.pair}}
	server.Config.ErrorLog = quiet()
	server.StartTLS()
	t.Cleanup(server.Close)
	paths = &host.Paths{KubeletRoot: t.TempDir(), KubeletAPI: server.URL}
	if err := os.Mkdir(filepath.Join(paths.KubeletRoot, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	k := &kubeletClient{config: Config{Node: testNode, Kubeconfig: server.kubeconfig()}, paths: *paths}
	kubelet = host.Kubelet{
		Pods: func(ctx context.Context) ([]corev1.Pod, error) { k.paths = *paths; return k.pods(ctx) },
		Metric: func(ctx context.Context, f string) (map[string]float64, error) {
			k.paths = *paths
			return k.metric(ctx, f)
		},
	}
	t.Cleanup(func() { k.drop(k.client) })
	return kubelet, server, paths
}

const kubeletPods = `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"a","namespace":"n","uid":"u"}}]}`

func TestKubeletPin(t *testing.T) {
	ca := newTestCertificate(t, "ca")
	selfSigned := newTestCertificate(t, "node-a@1700000000")
	tests := map[string]struct {
		certificate testCertificate
		files       map[string]string // below kubelet's root
		caFile      string            // below kubelet's root
		ok          bool
	}{
		"self-signed, on disk": {selfSigned, map[string]string{"pki/kubelet.crt": selfSigned.pem}, "", true},
		"rotated, on disk": {selfSigned,
			map[string]string{"pki/kubelet-server-current.pem": selfSigned.pem +
				"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"}, "", true},
		"tlsCertFile": {selfSigned, map[string]string{"own.crt": selfSigned.pem}, "own.crt", true},
		"CA, names the node": {newTestCertificate(t, "system:node:node-a", ca),
			map[string]string{"ca.crt": ca.pem}, "ca.crt", true},
		"CA, names another node": {newTestCertificate(t, "system:node:node-b", ca),
			map[string]string{"ca.crt": ca.pem}, "ca.crt", false},
		"CA, but of somebody else": {newTestCertificate(t, "system:node:node-a"),
			map[string]string{"ca.crt": ca.pem}, "ca.crt", false},
		"CA in the place of the leaf": {newTestCertificate(t, "system:node:node-a", ca),
			map[string]string{"pki/kubelet.crt": ca.pem}, "", false},
		"impostor": {newTestCertificate(t, "node-a@1700000000"),
			map[string]string{"pki/kubelet.crt": selfSigned.pem}, "", false},
		"nothing on disk":            {selfSigned, nil, "", false},
		"no certificate in the file": {selfSigned, map[string]string{"pki/kubelet.crt": "nothing"}, "", false},
		"broken certificate in a file": {selfSigned,
			map[string]string{"pki/kubelet.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, "",
			false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			kubelet, server, paths := newFakeKubelet(t, test.certificate, text(200, "application/json", kubeletPods))
			for file, content := range test.files {
				if err := os.WriteFile(filepath.Join(paths.KubeletRoot, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if test.caFile != "" {
				paths.KubeletCAFile = filepath.Join(paths.KubeletRoot, test.caFile)
			}
			pods, err := kubelet.Pods(within(t, time.Minute))
			seen := server.seen()
			if test.ok {
				if err != nil || len(pods) != 1 || seen[0].Header.Get("Authorization") != "Bearer secret-1" {
					t.Errorf("Pods() = %v, %v", names(pods), err)
				}
				return
			}
			if !errors.Is(err, errNotKubelet) {
				t.Errorf("Pods() = %v, want errNotKubelet", err)
			}
			if len(seen) != 0 {
				t.Errorf("an impostor was sent a request: %v", seen[0].Header)
			}
		})
	}
}

// Kubelet's certificate is renewed while the agent runs.
func TestKubeletCertificateRotates(t *testing.T) {
	certificate := newTestCertificate(t, "node-a")
	kubelet, _, paths := newFakeKubelet(t, certificate, text(200, "application/json", kubeletPods))
	file := filepath.Join(paths.KubeletRoot, "pki/kubelet.crt")
	if _, err := kubelet.Pods(within(t, time.Minute)); err == nil {
		t.Fatal("believed without a certificate on disk")
	}
	if err := os.WriteFile(file, []byte(certificate.pem), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kubelet.Pods(within(t, time.Minute)); err != nil {
		t.Errorf("Pods() = %v with the certificate on disk", err)
	}
}

func TestKubeletPods(t *testing.T) {
	tests := map[string]struct {
		answer http.HandlerFunc
		want   []string
		err    string
	}{
		"one": {text(200, "application/json", kubeletPods), []string{"a"}, ""},
		"none": {text(200, "application/json", `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}`),
			nil, ""},
		"{}":      {text(200, "application/json", `{}`), nil, `kind ""`},
		"status":  {text(200, "application/json", `{"kind":"Status"}`), nil, `kind "Status"`},
		"garbage": {text(200, "text/html", `<html>`), nil, "invalid character"},
		"no UID": {text(200, "application/json", `{"kind":"PodList","items":[{"metadata":{"name":"a"}}]}`), nil,
			"no UID"},
		"forbidden": {text(403, "text/plain",
			"Forbidden (user=a, verb=get, resource=nodes, subresource(s)=[pods proxy])"), nil,
			"status 403: Forbidden (user=a, verb=get, resource=nodes, subresource(s)=[pods proxy]); " + kubeletRight},
		"unauthorized": {text(401, "text/plain", "Unauthorized"), nil, "status 401"},
		"redirect":     {text(302, "text/plain", "", "Location", "/elsewhere"), nil, "status 302"},
		"cut short": {text(200, "application/json", kubeletPods[:30], "Content-Length", "100"), nil,
			"unexpected EOF"},
	}
	certificate := newTestCertificate(t, "node-a")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			kubelet, _, paths := newFakeKubelet(t, certificate, test.answer)
			if err := os.WriteFile(filepath.Join(paths.KubeletRoot, "pki/kubelet.crt"), []byte(certificate.pem),
				0o600); err != nil {
				t.Fatal(err)
			}
			got, err := kubelet.Pods(within(t, time.Minute))
			if (err != nil) != (test.err != "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("Pods() = %v, %v; want error with %q", names(got), err, test.err)
			}
			if diff := cmp.Diff(test.want, names(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The read-only port is unencrypted: no credentials go over it.
func TestKubeletReadOnlyPort(t *testing.T) {
	var auth []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth = append(auth, r.Header.Get("Authorization"))
		text(200, "application/json", kubeletPods)(w, r)
	}))
	defer server.Close()
	credentials := newFakeServer(t, mute)
	kubelet := NewKubelet(Config{Node: testNode, Kubeconfig: credentials.kubeconfig()}, host.Files{},
		host.Paths{KubeletAPI: server.URL})
	pods, err := kubelet.Pods(within(t, time.Minute))
	if err != nil || len(pods) != 1 || auth[0] != "" {
		t.Errorf("Pods() = %v, %v, Authorization %q", pods, err, auth)
	}
}

func TestKubeletHealthz(t *testing.T) {
	tests := map[string]struct {
		answer http.HandlerFunc
		want   string
		err    string
	}{
		"ok":        {text(200, "text/plain", "ok"), "ok", ""},
		"sick":      {text(500, "text/plain", "[-]syncloop failed: reason withheld"), "", "status 500: [-]syncloop"},
		"redirect":  {text(301, "text/plain", "", "Location", "/healthz2"), "", "status 301"},
		"too large": {text(200, "text/plain", strings.Repeat("x", maxHealthz+1)), "", "too large"},
		"mute":      {mute, "", "deadline exceeded"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.answer)
			defer server.Close()
			kubelet := NewKubelet(Config{}, host.Files{}, host.Paths{KubeletHealthz: server.URL + "/healthz"})
			limit := time.Minute
			if name == "mute" {
				limit = time.Second / 2
			}
			got, err := kubelet.Healthz(within(t, limit))
			if got != test.want || (err != nil) != (test.err != "") ||
				(err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Errorf("Healthz() = %.20q, %v; want %q, error with %q", got, err, test.want, test.err)
			}
		})
	}
}

func TestKubeletThatIsNotThere(t *testing.T) {
	address := loopback.Free(t)
	kubelet := NewKubelet(Config{Node: testNode, Kubeconfig: newFakeServer(t, mute).kubeconfig()}, host.Files{},
		host.Paths{KubeletHealthz: "http://" + address + "/healthz", KubeletAPI: "https://" + address})
	_, err1 := kubelet.Healthz(within(t, time.Minute))
	_, err2 := kubelet.Pods(within(t, time.Minute))
	_, err3 := kubelet.Metric(within(t, time.Minute), "x")
	for _, err := range []error{err1, err2, err3} {
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%v, want connection refused", err)
		}
	}
	kubelet = NewKubelet(Config{}, host.Files{}, host.Paths{})
	_, err1 = kubelet.Healthz(t.Context())
	_, err2 = kubelet.Pods(t.Context())
	for _, err := range []error{err1, err2} {
		if !errors.Is(err, hosterr.ErrNotConfigured) {
			t.Errorf("%v, want ErrNotConfigured", err)
		}
	}
}

func TestParseMetric(t *testing.T) {
	const page = `# HELP a_total Things.
# TYPE a_total counter
a_total{config="orphan",lifecycle="sync"} 3
a_total{config="desired",lifecycle="sync",} 4.5e+01 1700000000000
a_total_more{x="y"} 1
b 7
c{path="/a}{\"\\",other=","} 1
d{} +Inf
`
	tests := map[string]struct {
		page, family string
		want         map[string]float64
		bad          bool
	}{
		"labels": {page, "a_total", map[string]float64{`config="orphan",lifecycle="sync"`: 3,
			`config="desired",lifecycle="sync"`: 45}, false},
		"none":      {page, "b", map[string]float64{"": 7}, false},
		"absent":    {page, "a", map[string]float64{}, false},
		"no page":   {"", "a", map[string]float64{}, false},
		"no value":  {"a{x=\"y\"}\n", "a", nil, true},
		"bad value": {"a 1x\n", "a", nil, true},
		"no end":    {"a{x=\"y\" 1\n", "a", nil, true},
		"no number": {"a NaN\n", "a", nil, true},
		"twice":     {"a 1\na 2\n", "a", nil, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseMetric(strings.NewReader(test.page), test.family)
			if (err != nil) != test.bad {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got, err := parseMetric(strings.NewReader(page), "c"); err != nil || len(got) != 1 {
		t.Errorf("escaped labels: %v, %v", got, err)
	}
}

func FuzzParseMetric(f *testing.F) {
	f.Add([]byte("a{x=\"y\\\"}\"} 1 2\na 3\n# a\n"), "a")
	f.Fuzz(func(t *testing.T, page []byte, family string) {
		samples, err := parseMetric(bytes.NewReader(page), family)
		if (err == nil) != (samples != nil) {
			t.Errorf("%v, %v", samples, err)
		}
	})
}

func FuzzKubeletPods(f *testing.F) {
	f.Add([]byte(kubeletPods))
	f.Fuzz(func(t *testing.T, body []byte) {
		pods, err := parsePods(body)
		if err != nil && pods != nil {
			t.Errorf("%v beside %v", pods, err)
		}
		if err == nil && !json.Valid(body) {
			t.Errorf("believed %q", body)
		}
	})
}
