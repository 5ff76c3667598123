package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/web/command"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/trace/watchtest"
)

const exitFine = command.Fine

// ask sends a request with the token in a directory; without one, without a token.
func ask(t *testing.T, dir, on, path, host string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+on+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	if token, err := os.ReadFile(filepath.Join(dir, "token")); err == nil {
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

func cli(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	if err := root.ExecuteContext(t.Context()); err != nil {
		return out.String() + "error: " + err.Error()
	}
	return out.String()
}

// The whole program: a pod is missed, its reason is found and explained in ten lines, and it is kept across a restart.
func TestServe(t *testing.T) {
	center := watchtest.New(t)
	dir, on := filepath.Join(t.TempDir(), "data"), loopback.Free(t)
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan int, 1)
		go func() {
			ended <- run(ctx, []string{"serve", "--kubeconfig", center.Kubeconfig(), "--dir", dir, "--listen", on, "--promised", "1s"})
		}()
		wait(t, "ready", func() bool { code, _ := ask(t, dir, on, "/readyz", on); return code == http.StatusOK })
		return func() {
			cancel()
			if code := <-ended; code != exitFine {
				t.Errorf("ended with %d", code)
			}
		}
	}
	stop := start()
	late := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "default", UID: types.UID("u1"), CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a:1"}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
			Message: "0/1 nodes are available: 1 Insufficient cpu.\x1b[31m"}}}}
	center.Pod("ADDED", late)
	missed := func() bool {
		center.Beat()
		_, body := ask(t, dir, on, "/v1/pods/u1", on)
		return strings.Contains(body, `"CapacityExhausted"`)
	}
	wait(t, "missed", missed)
	text := cli(t, "pod", "default/late", "--dir", dir)
	for _, want := range []string{"creation of default/late: missed", "reason: CapacityExhausted (system)", "stage:  queue and schedule, of scheduler",
		"to do:  Add nodes", "####", "error: problems found"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") || strings.Count(text, "\n") > 10 {
		t.Errorf("not plain, or more than ten lines:\n%s", text)
	}
	if text := cli(t, "slis", "--dir", dir); !strings.Contains(text, "fewer than 20") {
		t.Error(text)
	}
	if text := cli(t, "terminating", "--dir", dir); text != "" {
		t.Error(text)
	}
	if text := cli(t, "failures", "--dir", dir); !strings.Contains(text, "    1  creation  CapacityExhausted        system  newest default/late") {
		t.Error(text)
	}
	if text := cli(t, "report", "weekly", "--dir", dir); !strings.Contains(text, "CapacityExhausted  creation  system  1") || !strings.Contains(text, "error: could not tell") {
		t.Error(text)
	}
	if text := cli(t, "report", "weekly", "--dir", dir, "-o", "html"); !strings.HasPrefix(text, "<!doctype html>") || !strings.Contains(text, "default/late") {
		t.Error(text)
	}
	wait(t, "health", func() bool {
		center.Beat()
		text := cli(t, "health", "--dir", dir)
		return strings.Contains(text, "Healthy since") && strings.Contains(text, "apiserver") && strings.Contains(text, "online")
	})
	if text := cli(t, "login", "--dir", dir); !strings.Contains(text, "http://"+on+"/login\ncode: ") {
		t.Error(text)
	}
	stop()
	stop = start()
	defer func() { stop() }()
	wait(t, "missed after a restart", missed)
	answers(t, dir, on)
}

func wait(t *testing.T, what string, true func() bool) {
	t.Helper()
	limit, ticker := time.After(time.Minute), time.NewTicker(50*time.Millisecond)
	defer ticker.Stop()
	for !true() {
		select {
		case <-limit:
			t.Fatalf("never %s", what)
		case <-ticker.C:
		}
	}
}

func answers(t *testing.T, dir, on string) {
	t.Helper()
	for path, want := range map[string]int{"/healthz": 200, "/v1/slis": 200, "/v1/slis?window=2m": 400, "/v1/pods/none": 404, "/v1/pods/a/b": 404,
		"/v1/pods/" + strings.Repeat("a", 300): 400, "/v1/terminating": 200, "/metrics": 200, "/v1/failures": 200,
		"/v1/components": 200, "/v1/health": 200, "/v1/report": 200, "/v1/report?week=2999-W01": 400, "/": 303, "/login": 200} {
		if code, body := ask(t, dir, on, path, on); code != want {
			t.Errorf("%.40s: %d, %.200s", path, code, body)
		}
	}
	for _, path := range []string{"/v1/slis", "/v1/pods/u1", "/v1/pods/default/late", "/v1/terminating", "/v1/failures", "/v1/components", "/v1/health", "/v1/report", "/metrics"} {
		if code, body := ask(t, t.TempDir(), on, path, on); code != http.StatusUnauthorized || strings.Contains(body, "late") {
			t.Errorf("%s without a token: %d %s", path, code, body)
		}
	}
	if code, _ := ask(t, dir, on, "/v1/slis", "evil.example"); code != http.StatusForbidden {
		t.Errorf("a host of others: %d", code)
	}
	var slis struct {
		AsOf time.Time
		SLIs []struct {
			Act     string
			Samples int
			Missed  int
			Success *float64
		}
	}
	_, body := ask(t, dir, on, "/v1/slis?window=1h&namespace=default", on)
	if err := json.Unmarshal([]byte(body), &slis); err != nil || len(slis.SLIs) != 4 || slis.SLIs[0].Missed != 1 || slis.SLIs[0].Success != nil || slis.AsOf.IsZero() {
		t.Errorf("%v %s", err, body)
	}
	_, body = ask(t, dir, on, "/metrics", on)
	metricsAreDocumented(t, body)
	for _, want := range []string{`tracecenter_health{level="Healthy"} 1`, `tracecenter_component_online{component="apiserver"`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
	if !strings.Contains(body, "tracecenter_pods 1") || strings.Contains(body, "late") {
		t.Error(body)
	}
}

func TestFlags(t *testing.T) {
	for flag, want := range map[string]string{"--listen=0.0.0.0:1": "needs --tls-cert", "--tls-cert=x": "belong together", "--listen=x": "--listen", "--promised=0s": "--promised", "--keep-days=1": "--keep-days"} {
		if text := cli(t, "serve", flag); !strings.Contains(text, want) {
			t.Errorf("%s: %s", flag, text)
		}
	}
	wrong := filepath.Join(t.TempDir(), "o.yaml")
	if err := os.WriteFile(wrong, []byte("reasons:\n  InitSlo: {class: user}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{wrong: `o.yaml:2: no reason "InitSlo"`, wrong + "x": "no such file"} {
		if text := cli(t, "serve", "--dir", t.TempDir(), "--overrides", name); !strings.Contains(text, want) {
			t.Errorf("%s: %s", name, text)
		}
	}
	if text := cli(t, "pod", "a/b/c"); !strings.Contains(text, "NAMESPACE/NAME") {
		t.Error(text)
	}
}
