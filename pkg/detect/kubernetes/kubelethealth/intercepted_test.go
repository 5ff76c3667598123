package kubelethealth

import (
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/test/need"
)

// TestHostPortOfHealthz: a pod with the hostPort of kubelet's healthz gets its requests, and decides nothing about kubelet.
func TestHostPortOfHealthz(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	iptables := need.Program(t, "iptables")
	const address, pod = "127.0.0.1:10248", "127.0.0.1:8080"
	serve := func(address string, code int, delay time.Duration) {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ReadHeaderTimeout: time.Minute,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-time.After(delay):
				case <-r.Context().Done():
				}
				w.WriteHeader(code)
				_, _ = io.WriteString(w, "ok")
			})}
		t.Cleanup(func() { _ = server.Close() })
		go func() { _ = server.Serve(listener) }()
	}
	run := func(h *host.Host, timeout time.Duration) (string, error) {
		http.DefaultClient.CloseIdleConnections()
		found, err := New(Settings{Timeout: timeout, SlowAfter: time.Minute, SlowBefore: time.Minute}).Run(t.Context(), h)
		return strings.Join(checktest.Reasons(found), " "), err
	}
	expectUnknown := func(name string, h *host.Host, timeout time.Duration) {
		t.Helper()
		if found, err := run(h, timeout); found != "" || err == nil || !strings.Contains(err.Error(), "hostPort") {
			t.Errorf("%s: %s, %v", name, found, err)
		}
	}
	serve(address, 200, 0)
	h := kubeletHost(t, address, self)
	if found, err := run(h, time.Minute); found != "" || err != nil {
		t.Fatal(found, err)
	}
	rule := strings.Fields("-t nat -A OUTPUT -p tcp -d 127.0.0.1 --dport 10248 -j REDIRECT --to-ports 8080")
	if out, err := exec.CommandContext(t.Context(), iptables, rule...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	expectUnknown("nothing listens in the pod", h, time.Minute)
	serve(pod, 500, 0)
	expectUnknown("the pod answers 500", h, time.Minute)
}
