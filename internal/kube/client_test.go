package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNewRefusesBadNodeNames(t *testing.T) {
	for _, name := range []string{"", "a,metadata.name=b", "../secrets", "Upper", strings.Repeat("a", 300)} {
		if _, err := New(Config{Node: name}, nil); err == nil {
			t.Errorf("New(%.20q) succeeded", name)
		}
	}
}

func TestCredentials(t *testing.T) {
	server := newFakeServer(t, mute)
	kubeconfig := server.kubeconfig()
	empty := t.TempDir()
	tests := map[string]struct {
		config Config
		source string
		host   string
		err    error
	}{
		"configured": {Config{Kubeconfig: kubeconfig, ServiceAccountDir: server.dir,
			ServiceAddress: "10.0.0.1:443"}, kubeconfig, server.URL, nil},
		"configured, missing": {Config{Kubeconfig: empty + "/none", ServiceAccountDir: server.dir,
			ServiceAddress: "10.0.0.1:443"}, "", "", os.ErrNotExist},
		"service account": {Config{ServiceAccountDir: server.dir, ServiceAddress: "10.0.0.1:443",
			KubeletKubeconfig: kubeconfig}, server.dir, "https://10.0.0.1:443", nil},
		"no address": {Config{ServiceAccountDir: server.dir, KubeletKubeconfig: kubeconfig}, kubeconfig,
			server.URL, nil},
		"no token": {Config{ServiceAccountDir: empty, ServiceAddress: "10.0.0.1:443",
			KubeletKubeconfig: kubeconfig}, kubeconfig, server.URL, nil},
		"nothing": {Config{ServiceAccountDir: empty, KubeletKubeconfig: empty + "/none"}, "", "",
			ErrNoCredentials},
		"kubeconfig is folder": {Config{Kubeconfig: empty}, "", "", errors.ErrUnsupported},
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, source, err := test.config.Credentials()
			if test.err != nil {
				if err == nil || (!errors.Is(test.err, errors.ErrUnsupported) && !errors.Is(err, test.err)) {
					t.Errorf("error %v, want %v", err, test.err)
				}
				return
			}
			if err != nil || source != test.source || got.Host != test.host {
				t.Errorf("Credentials() = %v, %s, %v; want %s from %s", got, source, err, test.host, test.source)
			}
		})
	}
}

func TestServiceAddressOfThePod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if got := (Config{}).serviceAddress(); got != "[fd00::1]:443" {
		t.Error(got)
	}
}

// The agent may be started before the node has joined.
func TestCredentialsComeLater(t *testing.T) {
	server := newFakeServer(t, object(t, podList("7", "")))
	path := filepath.Join(server.dir, "later")
	c, err := New(Config{Node: testNode, ServiceAccountDir: t.TempDir(), KubeletKubeconfig: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Cluster().Pods(t.Context()); !errors.Is(err, ErrNoCredentials) {
		t.Errorf("Pods() = %v, want ErrNoCredentials", err)
	}
	if err := os.Rename(server.kubeconfig(), path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Cluster().Pods(within(t, time.Minute)); err != nil {
		t.Errorf("Pods() = %v once there are credentials", err)
	}
}

// After a token is refused, the next call uses its replacement.
func TestTokenRotates(t *testing.T) {
	want := "secret-1"
	server := newFakeServer(t, nil)
	ok, refused := object(t, podList("7", "")), refusal(401, metav1.StatusReasonUnauthorized)
	server.set(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer "+want {
			ok(w, r)
		} else {
			refused(w, r)
		}
	})
	pods := server.client().Cluster().Pods
	ask := func() error { _, err := pods(within(t, time.Minute)); return err }
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	want = "secret-2"
	server.write("token", "secret-2\n")
	if err := ask(); err == nil {
		t.Log("the new token was read before it had to be")
	}
	if err := ask(); err != nil {
		t.Errorf("the new token is not used: %v", err)
	}
}

// The apiserver's certificate and the CA change: the client reads the CA file again when the connection fails.
func TestCARotates(t *testing.T) {
	server := newFakeServer(t, object(t, podList("7", "")))
	good := server.write("ca.good", readFile(t, filepath.Join(server.dir, "ca.crt")))
	other := newTestCertificate(t, "other")
	server.write("ca.crt", other.pem)
	c := server.client()
	if _, err := c.Cluster().Pods(within(t, time.Minute)); err == nil {
		t.Fatal("believed a server that another CA has signed")
	}
	if n := len(server.seen()); n != 0 {
		t.Errorf("%d requests reached a server that was not believed", n)
	}
	server.write("ca.crt", readFile(t, good))
	if _, err := c.Cluster().Pods(within(t, time.Minute)); err != nil {
		t.Errorf("Pods() = %v with the right CA", err)
	}
}

// If packets to the apiserver vanish, no call outlives its deadline, and the first call after that succeeds.
func TestBlackHole(t *testing.T) {
	server := newFakeServer(t, object(t, podList("7", "")))
	proxy := newProxy(t, server.Listener.Addr().String())
	kubeconfig := strings.ReplaceAll(readFile(t, server.kubeconfig()), server.Listener.Addr().String(), proxy.address())
	c, err := New(Config{Node: testNode, Kubeconfig: server.write("proxied", kubeconfig)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Cluster().Pods(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	proxy.swallow(true)
	for range 2 { // the old connection, then a new one
		start := time.Now()
		_, err := c.Cluster().Pods(within(t, 300*time.Millisecond))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 20*time.Second {
			t.Errorf("Pods() = %v after %s", err, time.Since(start))
		}
	}
	proxy.swallow(false)
	if _, err := c.Cluster().Pods(within(t, 30*time.Second)); err != nil {
		t.Errorf("Pods() = %v once packets pass again", err)
	}
}

func TestSessionIsMadeAnew(t *testing.T) {
	server := newFakeServer(t, object(t, podList("7", "")))
	c := server.client()
	remotes := make(map[string]bool)
	for range 3 {
		if _, err := c.Cluster().Pods(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		remotes[server.seen()[0].RemoteAddr] = true
		if left := time.Until(c.session.expires); left < minSession-time.Minute || left > 2*minSession {
			t.Errorf("session is kept for %s", left)
		}
	}
	if len(remotes) != 1 {
		t.Errorf("%d connections for 3 requests", len(remotes))
	}
	c.session.expires = time.Now()
	if _, err := c.Cluster().Pods(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if remotes[server.seen()[0].RemoteAddr] {
		t.Error("the old connection outlives its session")
	}
	// If the credentials cannot be read at the moment, the client continues with the old ones.
	if err := os.Remove(filepath.Join(server.dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	c.session.expires = time.Now()
	if _, err := c.Cluster().Pods(within(t, time.Minute)); err != nil {
		t.Errorf("Pods() = %v while the credentials cannot be read", err)
	}
}

func TestAnswerTooLarge(t *testing.T) {
	body := bounded{roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{Body: io.NopCloser(strings.NewReader("123456"))}, nil
	}), 5}
	response, err := body.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if data, err := io.ReadAll(response.Body); !errors.Is(err, errTooLarge) {
		t.Errorf("%q, %v", data, err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	server := newFakeServer(t, object(t, podList("7", "")))
	before := goleak.IgnoreCurrent()
	c := server.client()
	if _, err := c.Cluster().Pods(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	server.Close()
	goleak.VerifyNone(t, before)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// proxy forwards bytes, or swallows them.
type proxy struct {
	listener net.Listener
	target   string
	hole     chan bool // of size 1: holds whether bytes are swallowed
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	p := &proxy{listener, target, make(chan bool, 1)}
	p.hole <- false
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", target)
			if err != nil {
				conn.Close()
				continue
			}
			go p.pipe(upstream, conn)
			go p.pipe(conn, upstream)
		}
	}()
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) swallow(on bool) {
	<-p.hole
	p.hole <- on
}

func (p *proxy) pipe(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		swallowed := <-p.hole
		p.hole <- swallowed
		if swallowed {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
