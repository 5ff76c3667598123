package apiserverreachability

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// apiserver is a TLS server that answers every request with one status and counts the requests.
type apiserver struct {
	*httptest.Server
	status   atomic.Int32
	requests atomic.Int32
}

func newAPIServer(t *testing.T) *apiserver {
	t.Helper()
	s := &apiserver{}
	s.status.Store(http.StatusOK)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if r.URL.Path != "/livez" || r.Header.Get("Authorization") != "" {
			t.Errorf("asked for %s, with credentials: %t", r.URL.Path, r.Header.Get("Authorization") != "")
		}
		w.WriteHeader(int(s.status.Load()))
	}))
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// kubeconfig is kubelet's, with a token that must not be shown.
func (s *apiserver) kubeconfig(server string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"users: [{name: u, user: {token: secret}}]\n" +
		"clusters: [{name: c, cluster: {server: \"" + server + "\", certificate-authority-data: " +
		base64.StdEncoding.EncodeToString(ca) + "}}]\n"
}

// reachHost is a machine whose kubelet has that kubeconfig.
func reachHost(t *testing.T, kubeconfig string) *checktest.DNSHost {
	t.Helper()
	h := checktest.NewDNSHost(t, "10.96.0.10", "192.0.2.53")
	checktest.WriteHostFile(t, h.Files, "/etc/kubernetes/kubelet.conf", kubeconfig)
	client, err := kube.New(kube.Config{
		Node: "node-a", KubeletKubeconfig: h.Files.Path("/etc/kubernetes/kubelet.conf"),
		ServiceAccountDir: filepath.Join(t.TempDir(), "none"),
		Timeout:           time.Minute,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	h.Cluster = client.Cluster()
	return h
}

// keptConnection is a connection like kubelet's, on which data arrived.
func keptConnection(t *testing.T, s *apiserver) net.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", s.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a stand-in
	if err == nil {
		_, err = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	if err == nil {
		_, err = conn.Read(make([]byte, 1000))
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestAPIServerForReal(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	hosttest.Address(t, "lo", "10.96.0.10/32", "10.96.0.1/32")
	names := checktest.ServeDNS(t, "10.96.0.10:53")
	server := newAPIServer(t)
	h := reachHost(t, server.kubeconfig(server.URL))
	endpoint := server.Listener.Addr().String()
	_, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	check := New(Settings{Timeout: 10 * time.Second})
	see := func(name string, want ...string) {
		t.Helper()
		h.Up += time.Minute
		found, err := check.Run(t.Context(), h.Host)
		if _, partial := errors.AsType[*finding.PartialError](err); err != nil && !partial {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, f := range found {
			t.Log(name+":", f.Message)
		}
	}
	const service = "service/default/kubernetes=APIServerServiceUnreachable warning"
	subject := "apiserver/" + endpoint + "="
	see("the service leads nowhere", service)
	listener, err := net.Listen("tcp", "10.96.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	see("cleared")

	// A kept connection with received data is proof enough; the check sends no request.
	conn := keptConnection(t, server)
	before := server.requests.Load()
	synDrop := []string{"INPUT", "-p", "tcp", "--syn", "--dport", port, "-j", "DROP"}
	hosttest.Iptables(t, "nft", append([]string{"-A"}, synDrop...)...)
	for range 10 {
		see("kept connection")
	}
	if n := server.requests.Load() - before; n != 0 || names.Questions.Load() != 1 {
		t.Errorf("%d requests and %d questions in ten minutes, want none and 1", n, names.Questions.Load())
	}
	_ = conn.Close()
	checktest.AwaitError(t, detect.Check{Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
		_, received, err := network.LastReceived(h.Host, endpointAddresses(t, endpoint))
		if err == nil && received {
			return nil, nil
		}
		return nil, errors.Join(err, io.EOF)
	}}, h.Host, func(err error) bool { return errors.Is(err, io.EOF) })
	see("nothing is left, and new ones are dropped", subject+"APIServerUnreachable warning")
	hosttest.Iptables(t, "nft", append([]string{"-D"}, synDrop...)...)
	see("cleared")

	server.status.Store(http.StatusUnauthorized)
	see("401 is an answer")
	server.status.Store(http.StatusServiceUnavailable)
	see("503 is not well", subject+"APIServerFailing warning")
	server.status.Store(http.StatusOK)
	see("cleared")
	checktest.WriteHostFile(t, h.Files, "/etc/kubernetes/kubelet.conf", server.kubeconfig("https://localhost:1"))
	see("nobody listens", "apiserver/localhost:1=APIServerUnreachable warning")
	checktest.WriteHostFile(t, h.Files, "/etc/kubernetes/kubelet.conf",
		server.kubeconfig("https://no-such-name.invalid:6443"))
	see("no such name", "apiserver/no-such-name.invalid:6443=APIServerNameUnknown warning")
}

func endpointAddresses(t *testing.T, endpoint string) []netip.AddrPort {
	t.Helper()
	c := &apiserverCheck{endpoint: endpoint, settings: DefaultSettings()}
	c.resolve(t.Context(), time.Hour)
	return c.addresses
}

func TestAPIServerCertificate(t *testing.T) {
	server := newAPIServer(t)
	kubeconfig := server.kubeconfig(server.URL)
	c, err := kube.New(kube.Config{Node: "node-a", KubeletKubeconfig: filepath.Join(t.TempDir(), "k"),
		ServiceAccountDir: "/nonexistent"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := reachHost(t, kubeconfig)
	h.Cluster.Answered = c.Cluster().Answered // never
	// The certificate lacks this name.
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	checktest.WriteHostFile(t, h.Files, "/etc/kubernetes/kubelet.conf", server.kubeconfig("https://localhost:"+port))
	check := New(DefaultSettings())
	found, _ := check.Run(t.Context(), h.Host)
	if diff := cmp.Diff([]string{"apiserver/localhost:" + port + "=APIServerCertificateInvalid warning"},
		checktest.Reasons(found)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	h.Cluster = c.Cluster()
	if _, err := check.Run(t.Context(), h.Host); !checktest.IsNotApplicable(err) {
		t.Errorf("no kubeconfig: %v, want not applicable", err)
	}
	h.Cluster.Endpoint = func() (string, error) { return "a:1", nil }
	h.Cluster.Answered = func() (time.Duration, bool) { return time.Minute, true }
	h.Cluster.Reach = func(context.Context) (int, error) {
		t.Error("asked although it has just answered")
		return 0, nil
	}
	if found, err := check.Run(t.Context(), h.Host); err != nil || found != nil {
		t.Errorf("it has just answered: %v, %v", found, err)
	}
}

// Data received from kubelet's former apiserver is no evidence about the present one.
func TestAPIServerMoved(t *testing.T) {
	c := &apiserverCheck{settings: DefaultSettings(), endpoint: "10.0.0.1:6443",
		addresses: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443")}}
	h := hosttest.Host(t)
	h.Cluster.Endpoint = func() (string, error) { return "away..invalid:6443", nil }
	h.Cluster.Reach = func(context.Context) (int, error) { return 0, errors.New("no such host") }
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the name is not resolved; no server is asked for a name with an empty label
	_, _ = c.observe(ctx, h)
	if len(c.addresses) > 0 {
		t.Errorf("listens to %v for %s", c.addresses, c.endpoint)
	}
}

// A recorded answer of an apiserver is no fault.
func TestRecordedAnswer(t *testing.T) {
	files := checktest.Recorded(t, "testdata/apiserver-reachability/ok-recorded.txtar")
	first, _, _ := strings.Cut(string(files["livez"]), "\n")
	var status int
	if _, err := fmt.Sscanf(first, "HTTP/2 %d", &status); err != nil {
		t.Fatal(err)
	}
	if f := evaluateReach("192.0.2.1:6443", status, nil); f != nil {
		t.Errorf("status %d: %+v", status, f)
	}
}
