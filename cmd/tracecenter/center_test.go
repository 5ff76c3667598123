package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
	"github.com/nodeagent/nodeagent/pkg/web/identity/identitytest"
)

// A real event center gets a fault, once although it was away at first, and its end.
func TestFaultsAtTheEventCenter(t *testing.T) {
	center, err := eventcenter.Open(t.Context(), eventcenter.Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Location: time.UTC})
	if err != nil {
		t.Fatal(err)
	}
	defer center.Close()
	token := strings.Repeat("secret", 8)
	interfaces := api.New(api.Config{Journal: center.Journal, Model: center.Model, Log: slog.New(slog.DiscardHandler), Loopback: true,
		Authenticate: identitytest.Administrator(t, token), Alive: time.Minute})
	away := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away && r.Method == http.MethodPost {
			away = false
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		interfaces.ServeHTTP(w, r)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	client := &remote.Client{Server: server.URL, Token: file}
	sender := nodefault.NewSender(client, "prod", slog.New(slog.DiscardHandler))
	go sender.Run(t.Context())
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
