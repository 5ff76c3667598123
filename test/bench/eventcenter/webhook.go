package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// webhook is a subscriber to fatal faults.
type webhook struct {
	server *http.Server
	url    string

	mu   sync.Mutex           // guards came
	came map[string]time.Time // by the name of the disk
}

func startWebhook() (*webhook, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &webhook{url: "http://" + l.Addr().String(), came: map[string]time.Time{}}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = h.server.Serve(l) }() // until it is closed
	return h, nil
}

// ServeHTTP records when each fault arrived.
func (h *webhook) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var events []struct {
		Data struct{ Subject finding.Subject }
	}
	now := time.Now()
	if json.NewDecoder(r.Body).Decode(&events) != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		if _, ok := h.came[e.Data.Subject.Name]; !ok {
			h.came[e.Data.Subject.Name] = now
		}
	}
}

// settings writes the settings for a center to send it the fatal faults.
func (h *webhook) settings(dir string) (string, error) {
	secret := filepath.Join(dir, "secret")
	text := fmt.Sprintf("targets:\n  - {url: %s, addresses: [127.0.0.0/8], secretFile: %s, noHandshake: true}\n"+
		"subscriptions:\n  - {name: bench, url: %s/, filter: {severity: [fatal]}}\n", h.url, secret, h.url)
	key := "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32)))
	name := filepath.Join(dir, "subscriptions.yaml")
	if err := os.WriteFile(secret, []byte(key), 0o600); err != nil {
		return "", err
	}
	return name, os.WriteFile(name, []byte(text), 0o600)
}

// latency raises fatal faults on nodes, ten a second, and returns how long they took to the subscriber.
func (h *webhook) latency(ctx context.Context, f *fleet, faults int) (figure, error) {
	began := map[string]time.Time{}
	for i := range faults {
		disk := fmt.Sprintf("probe-%d-%d", time.Now().UnixNano(), i)
		began[disk] = time.Now()
		f.nodes[(i*7919)%len(f.nodes)].change(began[disk], 1, disk, finding.Fatal)
		time.Sleep(100 * time.Millisecond)
	}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var took []time.Duration
		h.mu.Lock()
		for disk, at := range began {
			if came, ok := h.came[disk]; ok {
				took = append(took, came.Sub(at))
			}
		}
		h.mu.Unlock()
		for time.Now().After(limit) && len(took) < faults { // count the missing ones as if they arrived now
			took = append(took, time.Minute)
		}
		if len(took) == faults || ctx.Err() != nil {
			return figureOf(took), ctx.Err()
		}
	}
}
