package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	report "github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/trace/chore"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
	"github.com/nodeagent/nodeagent/pkg/web/identity/identitytest"
)

// openCenter opens a real event center, which is away for the first events. It returns a client, and the file of its token.
func openCenter(t *testing.T) (center *remote.Client, token string) {
	t.Helper()
	c, err := eventcenter.Open(t.Context(), eventcenter.Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Location: time.UTC})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	secret := strings.Repeat("secret", 8)
	interfaces := api.New(api.Config{Journal: c.Journal, Model: c.Model, Log: slog.New(slog.DiscardHandler), Loopback: true,
		Authenticate: identitytest.Administrator(t, secret), Alive: time.Minute, Reports: c.Reports})
	var away atomic.Bool
	away.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && away.CompareAndSwap(true, false) {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		interfaces.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	token = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return &remote.Client{Server: server.URL, Token: token}, token
}

// What an agent reports about a pod reaches the reason of its miss by way of a real event center, which takes it for no fault.
func TestEvidenceFromTheEventCenter(t *testing.T) {
	center, token := openCenter(t)
	agent := report.New(report.Config{Settings: report.Settings{Endpoints: []string{center.Server + "/v1/events"}, Cluster: "prod", TokenFile: token},
		Node: "node-1", Boot: "boot", ReadFile: os.ReadFile})
	go func() { _ = agent.Run(t.Context()) }()
	began := time.Now().Add(-2 * time.Minute)
	follower := follow.New(follow.Config{Promised: time.Minute})
	follower.Lease("kube-scheduler", false, began)
	follower.Synced(began, true)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-1", CreationTimestamp: metav1.Time{Time: began}},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "c"}}, Volumes: []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, StartTime: &metav1.Time{Time: began}}}
	follower.Pod(pod, follow.Watched, began)
	reader := messages.Reader{Center: center, Cluster: "prod",
		Take: func(e event.Evidence, node string, _ time.Time) bool {
			return follower.Evidence(e, node, began.Add(50*time.Second))
		}}
	go repeat(t, reader.Read)
	agent.Evidence(event.Evidence{Act: "creation", UID: "uid-of-no-pod", Namespace: "default", Name: "web", Began: began})
	agent.Evidence(event.Evidence{Act: "creation", UID: "uid-1", Namespace: "default", Name: "web", Began: began, Stage: "volumes", Text: "waits for volumes: v"})
	wait(t, "evidence", func() bool { c := follower.Counts(); return c.Evidence == 1 && c.EvidenceIgnored == 1 })
	follower.Lease("kube-scheduler", false, began.Add(70*time.Second))
	follower.Lease("kube-scheduler", false, began.Add(74*time.Second))
	judged := follower.Judge(began.Add(74 * time.Second)).Judged
	if len(judged) != 1 || judged[0].First.Reason != "MountSlow" || judged[0].First.Detail != "waits for volumes: v" {
		t.Errorf("%+v", judged)
	}
	var faults struct{ Faults []json.RawMessage }
	if _, err := center.Decode(t.Context(), http.MethodGet, "/v1/faults", nil, &faults); err != nil || len(faults.Faults) != 0 {
		t.Errorf("%v %s", err, faults.Faults)
	}
}

func repeat(t *testing.T, do func(context.Context, time.Time) error) {
	t.Helper()
	chore.Repeat(t.Context(), slog.New(slog.DiscardHandler), time.Second, chore.Chore{Do: do})
}

// A real event center gets a fault, once although it was away at first, and its end.
func TestFaultsAtTheEventCenter(t *testing.T) {
	client, _ := openCenter(t)
	sender := messages.NewSender(client, "prod", slog.New(slog.DiscardHandler))
	go repeat(t, sender.Send)
	fault := nodefault.Fault{Node: "node-1", Kind: nodefault.SandboxFails, Misses: 4, Acts: 9, Last: time.Now(), Since: time.Now()}
	if err := sender.Report([]nodefault.Fault{fault}, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	faults := func() (text string) {
		var answer json.RawMessage
		_, err := client.Decode(t.Context(), http.MethodGet, "/v1/faults", nil, &answer)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer)
	}
	wait(t, "raised", func() bool {
		text := faults()
		return strings.Contains(text, "pod-delivery") && strings.Contains(text, "SandboxFailsOnNode") && strings.Contains(text, "node-1")
	})
	for range 3 { // repeated only after some time
		if err := sender.Report([]nodefault.Fault{fault}, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := sender.Report(nil, []nodefault.Fault{fault}, time.Now()); err != nil {
		t.Fatal(err)
	}
	wait(t, "cleared", func() bool { return !strings.Contains(faults(), "pod-delivery") })
	var events json.RawMessage
	if _, err := client.Decode(t.Context(), http.MethodGet, "/v1/events", nil, &events); err != nil || strings.Count(string(events), `"specversion"`) != 2 {
		t.Errorf("%v %s", err, events)
	}
}
