package kubelethealth

import (
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// TestHostPortOfHealthz: a pod with the hostPort of kubelet's healthz gets its requests, and does not decide about kubelet.
func TestHostPortOfHealthz(t *testing.T) {
	if !hosttest.OwnNetwork(t) {
		return
	}
	iptables := need.Program(t, "iptables")
	const address, pod = "127.0.0.1:10248", "127.0.0.1:8080"
	var code atomic.Int32 // of the pod's answers
	serve := func(address string, first int) {
		code.Store(int32(first)) //nolint:gosec // a status
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ReadHeaderTimeout: time.Minute,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(int(code.Load()))
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
	serve(address, 200)
	h := kubeletHost(t, address, self)
	if found, err := run(h, time.Minute); found != "" || err != nil {
		t.Fatal(found, err)
	}
	rule := strings.Fields("-t nat -A OUTPUT -p tcp -d 127.0.0.1 --dport 10248 -j REDIRECT --to-ports 8080")
	if out, err := exec.CommandContext(t.Context(), iptables, rule...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	expectUnknown("nothing listens in the pod", h, time.Minute)
	serve(pod, 500)
	expectUnknown("the pod answers 500", h, time.Minute)
	code.Store(200)
	expectUnknown("the pod answers ok in kubelet's place", h, time.Minute)
	check := New(Settings{Timeout: time.Minute, SlowAfter: time.Minute, SlowBefore: time.Minute})
	now := host.Now()
	h.Clock = func() finding.Timestamp { return now }
	for _, want := range []bool{true, false, true} { // not in each run: it costs more than the request itself
		if _, err := check.Run(t.Context(), h); (err != nil) != want {
			t.Errorf("after %s: %v, want an error: %t", now.SinceBoot, err, want)
		}
		now.SinceBoot += verifyEvery/2 + time.Second
	}
}
