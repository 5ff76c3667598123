package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// When a disk becomes read-only, after an error such as a bad block, writes fail with the reason, reads work, and a
// metric counts it. A center restarted after the repair has every acknowledged event.
func TestReadOnlyDisk(t *testing.T) {
	disk := hosttest.NewLoopFS(t, "ext4")
	mount := filepath.Join(t.TempDir(), "disk")
	disk.Mount(mount, "errors=remount-ro")
	dir := filepath.Join(mount, "center")
	p := start(t, dir)
	must(t, p.post(raised("node-1", 1), raised("node-2", 1)))
	disk.TriggerError()
	var refused error
	if !eventually(patience, func() bool { refused = p.post(raised("node-1", 2)); return refused != nil }) {
		t.Fatalf("an event is taken on a read-only disk\n%s", p.log)
	}
	if !strings.Contains(refused.Error(), "503") || !strings.Contains(refused.Error(), "the journal cannot be written") {
		t.Errorf("refused by: %v", refused)
	}
	for path, want := range map[string]string{"/healthz": "alive", "/v1/faults": "node-2", "/v1/events": `"newest":"2"`,
		"/v1/nodes/prod/node-1": "node-1", "/metrics": "eventcenter_append_failures_total "} {
		status, body, err := p.do(http.MethodGet, path, "", nil)
		if err != nil || status != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d, %v, without %s: %.500s", path, status, err, want, body)
		}
	}
	_, metrics, _ := p.do(http.MethodGet, "/metrics", "", nil)
	if strings.Contains(string(metrics), "eventcenter_append_failures_total 0\n") {
		t.Error("no failure is counted")
	}
	p.stop(syscall.SIGTERM)
	disk.Unmount(mount)
	disk.Check()
	disk.Mount(mount, "errors=remount-ro")
	p = start(t, dir)
	must(t, p.post(raised("node-1", 2)))
	if _, body, err := p.do(http.MethodGet, "/v1/events", "", nil); err != nil || !strings.Contains(string(body), `"newest":"3"`) {
		t.Errorf("%v %s", err, body)
	}
	p.stop(syscall.SIGTERM)
}
