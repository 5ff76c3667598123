package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// With a damaged control store the center still takes and returns events. It delivers none, and reports that; the
// damaged file stays unchanged.
func TestDamagedControl(t *testing.T) {
	for name, text := range map[string][]byte{"no database": bytes.Repeat([]byte("x"), 8192), "cut off": nil} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := start(t, dir)
			p.stop(syscall.SIGTERM)
			file := filepath.Join(dir, "control.db")
			if text == nil {
				data, err := os.ReadFile(file)
				must(t, err)
				text = data[:len(data)/2-100]
			}
			must(t, os.WriteFile(file, text, 0o600))
			p = start(t, dir)
			if err := p.post(raised("node-1", 1)); err != nil {
				t.Errorf("an event is not taken: %v", err)
			}
			for path, want := range map[string]string{"/readyz": "the center delivers no events", "/v1/events": `"newest":"1"`} {
				status, body, err := p.do(http.MethodGet, path, "", nil)
				if err != nil || status != http.StatusOK || !strings.Contains(string(body), want) {
					t.Errorf("%s: %d, %v, without %s: %.500s", path, status, err, want, body)
				}
			}
			if !strings.Contains(p.log.String(), "open control store failed") {
				t.Errorf("the log does not say so: %s", p.log)
			}
			p.stop(syscall.SIGTERM)
			if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, text) {
				t.Errorf("the damaged file is changed: %v", err)
			}
		})
	}
}
