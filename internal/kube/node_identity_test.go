package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
)

// authority signs client certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{t: t}
	pemCert, pemKey := a.sign(pkix.Name{CommonName: "clients"}, true)
	pair, err := tls.X509KeyPair([]byte(pemCert), []byte(pemKey))
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

func (a authority) sign(subject pkix.Name, ca bool) (certificate, key string) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     ca, BasicConstraintsValid: ca, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if ca {
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	block := func(kind string, data []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}))
	}
	return block("CERTIFICATE", der), block("EC PRIVATE KEY", encoded)
}

// rightsServer is an apiserver with the Node authorizer (with selectors, as since 1.32) and RBAC without a right to
// pods for the ServiceAccount, unless wide. It records each request and its user.
type rightsServer struct {
	*fakeServer
	clients authority
	wide    bool
	asked   []string
}

func newRightsServer(t *testing.T, pods ...corev1.Pod) *rightsServer {
	t.Helper()
	s := &rightsServer{clients: newAuthority(t)}
	s.fakeServer = &fakeServer{t: t, dir: t.TempDir(), answer: func(w http.ResponseWriter, r *http.Request) {
		s.authorize(w, r, pods)
	}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.Config.ErrorLog = quiet()
	roots := x509.NewCertPool()
	roots.AddCert(s.clients.cert)
	s.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	s.write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	s.write("token", "secret-1")
	s.kubelet("system:node:"+testNode, "", "")
	return s
}

// kubelet writes kubelet's kubeconfig, with the client certificate in a separate file.
func (s *rightsServer) kubelet(name, more, ca string) {
	cert, key := s.clients.sign(pkix.Name{CommonName: name, Organization: []string{"system:nodes"}}, false)
	pair := s.write("kubelet.pem", cert+key)
	if ca == "" {
		ca = fmt.Sprintf("certificate-authority: %q", filepath.Join(s.dir, "ca.crt"))
	}
	s.write("kubelet.conf", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, %s}}]
users: [{name: u, user: {client-certificate: %q, client-key: %[3]q%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, s.URL, ca, pair, more))
}

func (s *rightsServer) authorize(w http.ResponseWriter, r *http.Request, pods []corev1.Pod) {
	forbidden := refusal(http.StatusForbidden, metav1.StatusReasonForbidden)
	node := len(r.TLS.PeerCertificates) > 0 && r.Header.Get("Authorization") == ""
	who := "serviceaccount"
	if node {
		who = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	what := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/api/v1/")
	s.asked = append(s.asked, who+" "+what)
	switch {
	case what == "GET pods" && node && r.URL.Query().Get("fieldSelector") == "spec.nodeName="+testNode,
		what == "GET pods" && s.wide:
		object(s.t, podList("7", "", pods...))(w, r)
	case what == "GET nodes/"+testNode:
		object(s.t, &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "n"}})(w, r)
	case r.Method == "PATCH" && !node:
		text(http.StatusOK, "application/json", `{}`)(w, r)
	case strings.Contains(what, "/pods/") && s.wide && !node:
		refusal(http.StatusNotFound, metav1.StatusReasonNotFound)(w, r)
	default:
		forbidden(w, r)
	}
}

func (s *rightsServer) client() *Client {
	s.t.Helper()
	c, err := New(Config{
		Node: testNode, ServiceAccountDir: s.dir, ServiceAddress: strings.TrimPrefix(s.URL, "https://"),
		KubeletKubeconfig: filepath.Join(s.dir, "kubelet.conf"), KubeletNamed: true,
	}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	c.limiter = flowcontrol.NewFakeAlwaysRateLimiter()
	c.asNode.limiter = c.limiter
	s.t.Cleanup(func() { c.Close() })
	return c
}

// TestPodsAreReadAsTheNode: an agent with a ServiceAccount reads its node's pods, Node and CSINode as the node, and
// writes with the ServiceAccount.
func TestPodsAreReadAsTheNode(t *testing.T) {
	s := newRightsServer(t, pod("a", testNode))
	c := s.client()
	const asNode = "system:node:" + testNode
	pods, err := c.Cluster().Pods(within(t, time.Minute))
	if err != nil || len(pods) != 1 {
		t.Errorf("%d pods, %v", len(pods), err)
	}
	if _, err := c.Cluster().Node(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	if err := c.PatchNodeStatus(within(t, time.Minute), []byte(`{"status":{"conditions":[]}}`)); err != nil {
		t.Error(err)
	}
	want := []string{asNode + " GET pods", asNode + " GET nodes/" + testNode, "serviceaccount PATCH nodes/" + testNode +
		"/status"}
	if got := strings.Join(s.asked, ", "); got != strings.Join(want, ", ") {
		t.Errorf("asked %s, want %s", got, strings.Join(want, ", "))
	}
	if _, ever := c.lastAnswer(); !ever {
		t.Error("the apiserver is said to have never answered")
	}
	// For a pod that does not exist, a node gets 403 in any case: without the right, that proves nothing.
	if _, err := c.Cluster().Pod(within(t, time.Minute), "default", "gone"); !apierrors.IsForbidden(err) ||
		apierrors.IsNotFound(err) ||
		!strings.Contains(fmt.Sprint(err), "rights.pods") {
		t.Errorf("a pod that is not there: %v, want forbidden, naming the switch", err)
	}
	s.wide = true
	if _, err := c.Cluster().Pod(within(t, time.Minute), "default", "gone"); !apierrors.IsNotFound(err) {
		t.Errorf("with the wide right: %v, want not found", err)
	}
}

// TestNodeIdentityIsRefused: kubelet's credentials are used only if that is safe. Otherwise the agent uses the
// ServiceAccount and reports missing rights.
func TestNodeIdentityIsRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(s *rightsServer)
		want   string
	}{
		{"of another node", func(s *rightsServer) {
			s.kubelet("system:node:node-b", "", "")
		}, "not of system:node:node-a"},
		{"of nobody in particular", func(s *rightsServer) { s.kubelet("admin", "", "") }, "not of system:node:node-a"},
		{"a program is named", func(s *rightsServer) {
			s.kubelet("system:node:"+testNode, ", exec: {apiVersion: client.authentication.k8s.io/v1, command: "+
				"/bin/false, interactiveMode: Never}", "")
		}, "a program would have to be run"},
		{"another cluster", func(s *rightsServer) {
			other := newAuthority(s.t)
			s.kubelet("system:node:"+testNode, "", fmt.Sprintf("certificate-authority: %q",
				s.write("other.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
					Bytes: other.cert.Raw})))))
		}, "another cluster"},
		{"an apiserver that is not verified", func(s *rightsServer) {
			s.kubelet("system:node:"+testNode, "", "insecure-skip-tls-verify: true")
		}, "not verified"},
		{"there are none", func(s *rightsServer) { s.write("kubelet.conf", "") }, "kubelet"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newRightsServer(t, pod("a", testNode))
			test.change(s)
			c := s.client()
			_, err := c.Cluster().Pods(within(t, time.Minute))
			if !apierrors.IsForbidden(err) || !strings.Contains(fmt.Sprint(err), test.want) ||
				!strings.Contains(fmt.Sprint(err), "rights.pods") {
				t.Errorf("%v, want forbidden, with %q and the switch", err, test.want)
			}
			s.wide = true
			if pods, err := c.Cluster().Pods(within(t, time.Minute)); err != nil || len(pods) != 1 {
				t.Errorf("with the wide right: %d pods, %v", len(pods), err)
			}
			for _, asked := range s.asked {
				if !strings.HasPrefix(asked, "serviceaccount ") {
					t.Errorf("credentials that are not to be used were shown: %s", asked)
				}
			}
		})
	}
}
