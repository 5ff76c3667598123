package main

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
)

// A replica whose peers hang says so before its patience with elections ends, and then refuses events at once, so that
// senders go on to another. It takes events when the peers do.
func TestHangingReplicas(t *testing.T) {
	r := startReplicas(t)
	p := r.all[0]
	must(t, p.post(raised("node-1", 1)))
	for _, peer := range r.all[1:] {
		must(t, peer.cmd.Process.Signal(syscall.SIGSTOP))
	}
	const alone = "no other replica is connected"
	var status int
	var answer []byte
	if !eventually(patience, func() bool {
		status, answer, _ = p.do(http.MethodGet, "/readyz", "", nil)
		return status == http.StatusServiceUnavailable
	}) || !strings.Contains(string(answer), alone) {
		t.Errorf("not ready: %d %s", status, answer)
	}
	body, err := raised("node-1", 2).Encode()
	must(t, err)
	impatient := &http.Client{Timeout: 4 * time.Second} // half as long as a request may wait for an election
	status, answer, err = p.ask(impatient, p.token(), http.MethodPost, "/v1/events", event.MediaType, body)
	if err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("an event: %d %s %v", status, answer, err)
	}
	for _, peer := range r.all[1:] {
		must(t, peer.cmd.Process.Signal(syscall.SIGCONT))
	}
	if !eventually(patience, func() bool {
		err = p.post(raised("node-1", 2))
		status, _, _ = p.do(http.MethodGet, "/readyz", "", nil)
		return err == nil && status == http.StatusOK
	}) {
		t.Errorf("the peers go on, the replica does not: %d %v", status, err)
	}
}
