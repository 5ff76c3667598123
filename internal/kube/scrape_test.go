package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

func TestKubeletScrape(t *testing.T) {
	const page = "kubelet_evictions{eviction_signal=\"memory.available\"} 3\nkubelet_running_pods 7\n"
	const probes = "prober_probe_total{result=\"failed\"} 5\n"
	certificate := newTestCertificate(t, "node-a")
	tests := map[string]struct {
		answers   map[string]http.HandlerFunc
		want      kubelet.Metrics
		forbidden bool
		err       bool
		probesErr bool
	}{
		"both": {
			answers: map[string]http.HandlerFunc{"/metrics": text(200, "text/plain", page),
				"/metrics/probes": text(200, "text/plain", probes)},
			want: kubelet.Metrics{
				"kubelet_evictions":  {{Labels: `eviction_signal="memory.available"`, Value: 3}},
				"prober_probe_total": {{Labels: `result="failed"`, Value: 5}},
			},
		},
		"no probes": {
			answers: map[string]http.HandlerFunc{"/metrics": text(200, "text/plain", page),
				"/metrics/probes": text(404, "text/plain", "404 page not found")},
			want: kubelet.Metrics{"kubelet_evictions": {{Labels: `eviction_signal="memory.available"`,
				Value: 3}}}, probesErr: true,
		},
		"forbidden": {answers: map[string]http.HandlerFunc{"/metrics": text(403, "text/plain", "Forbidden")},
			err: true, forbidden: true},
		"unauthorized": {answers: map[string]http.HandlerFunc{"/metrics": text(401, "text/plain", "Unauthorized")},
			err: true},
		"malformed": {answers: map[string]http.HandlerFunc{"/metrics": text(200, "text/plain",
			"kubelet_evictions x\n")}, err: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, server, paths := newFakeKubelet(t, certificate, func(w http.ResponseWriter, r *http.Request) {
				test.answers[r.URL.Path](w, r)
			})
			if err := os.WriteFile(filepath.Join(paths.KubeletRoot, "pki/kubelet.crt"), []byte(certificate.pem),
				0o600); err != nil {
				t.Fatal(err)
			}
			kubelet := NewKubelet(Config{Node: testNode, Kubeconfig: server.kubeconfig()}, host.Files{}, *paths)
			got, err := kubelet.Scrape(within(t, time.Minute))
			if test.err {
				if err == nil || errors.Is(err, hosterr.ErrForbidden) != test.forbidden {
					t.Errorf("Scrape() = %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.Metrics); diff != "" || (got.ProbesErr != nil) != test.probesErr {
				t.Errorf("probes: %v (-want +got):\n%s", got.ProbesErr, diff)
			}
			again, err := kubelet.Scrape(within(t, time.Minute))
			if again != got || err != nil || len(server.seen()) != 2 {
				t.Errorf("the answer is not shared: %d requests, %v", len(server.seen()), err)
			}
		})
	}
}

func TestScraperKeepsErrorsShortly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, slow := 0, false
		s := newCached(func(ctx context.Context) (*kubelet.Scrape, error) {
			if calls++; calls == 1 {
				return nil, errors.New("refused")
			}
			if slow {
				return nil, fmt.Errorf("get: %w", context.DeadlineExceeded)
			}
			return &kubelet.Scrape{}, ctx.Err()
		})
		s.keep = keepScrape
		ask := func(fails bool, wantCalls int) {
			t.Helper()
			if _, err := s.get(t.Context()); (err != nil) != fails || calls != wantCalls {
				t.Errorf("error %v after %d calls", err, calls)
			}
		}
		ask(true, 1)
		ask(true, 1)
		time.Sleep(scrapeErrorFor) // of the bubble: no time passes
		ask(false, 2)
		time.Sleep(scrapeFor - time.Second)
		ask(false, 2)
		time.Sleep(time.Second)
		ask(false, 3)
		time.Sleep(scrapeFor)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.get(gone); err == nil {
			t.Error("no error of a caller that gave up")
		}
		if _, err := s.get(t.Context()); err != nil {
			t.Errorf("another caller's cancellation was kept: %v", err)
		}
		time.Sleep(scrapeFor)
		slow = true
		asked := calls + 1
		ask(true, asked)
		time.Sleep(2 * scrapeErrorFor)
		ask(true, asked) // a hanging kubelet is not asked more often than a healthy one
		time.Sleep(scrapeFor)
		slow = false
		ask(false, asked+1)
	})
}

func TestServingCertificate(t *testing.T) {
	certificate := newTestCertificate(t, "node-a@1")
	server := httptest.NewUnstartedServer(http.HandlerFunc(mute))
	server.Config.ErrorLog = quiet()
	none := false
	server.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if none {
			return nil, errors.New("no serving certificate available for the kubelet")
		}
		return &certificate.pair, nil
	}}
	// httptest would prefer the server's own certificate.
	listener := tls.NewListener(server.Listener, server.TLS)
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	kubelet := NewKubelet(Config{}, host.Files{}, host.Paths{KubeletAPI: "https://" + listener.Addr().String()})
	got, err := kubelet.ServingCertificate(within(t, time.Minute))
	if err != nil || !got.NotAfter.Equal(certificate.leaf.NotAfter) {
		t.Errorf("ServingCertificate() = %v, %v", got, err)
	}
	none = true
	if _, err := kubelet.ServingCertificate(within(t, time.Minute)); !errors.Is(err, hosterr.ErrNoCertificate) {
		t.Errorf("ServingCertificate() of a kubelet that has none = %v", err)
	}
	if _, err := NewKubelet(Config{}, host.Files{}, host.Paths{}).ServingCertificate(t.Context()); !errors.Is(err,
		hosterr.ErrNotConfigured) {
		t.Errorf("ServingCertificate() without an API = %v", err)
	}
}
