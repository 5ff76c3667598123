package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/trace/watchtest"
)

// The whole program: an owner with refused pods is missed once, though there is no pod, with the class from the file of
// overrides.
func TestServeRefused(t *testing.T) {
	center, on, dir := watchtest.New(t), loopback.Free(t), filepath.Join(t.TempDir(), "data")
	ctx, cancel := context.WithCancel(t.Context())
	overrides := filepath.Join(t.TempDir(), "overrides.yaml")
	if err := os.WriteFile(overrides, []byte("reasons:\n  QuotaExceeded: {class: system}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--kubeconfig", center.Kubeconfig(), "--dir", dir, "--listen", on,
			"--promised", "1s", "--overrides", overrides})
	}()
	defer func() { cancel(); <-ended }()
	wait(t, "ready", func() bool { code, _ := ask(t, dir, on, "/readyz", on); return code == http.StatusOK })
	wait(t, "missed", func() bool {
		center.Beat()
		center.Event(&corev1.Event{Reason: "FailedCreate", Type: "Warning",
			Message:        `Error creating: pods "web-1-x" is forbidden: exceeded quota: q`,
			InvolvedObject: corev1.ObjectReference{Kind: "ReplicaSet", Namespace: "default", Name: "web-1", UID: "r1"}})
		_, body := ask(t, dir, on, "/v1/slis", on)
		return strings.Contains(body, `"QuotaExceeded":1`)
	})
	text := cli(t, "pod", "default/web-1", "--dir", dir)
	for _, want := range []string{"refusal of default/web-1: missed", "owner ReplicaSet/web-1", "reason: QuotaExceeded (system)",
		"stage:  admit, of apiserver, webhooks", "to do:  Raise the quota"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
