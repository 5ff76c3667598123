package main

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

// The consumers of docs/subscribe.md work unchanged: the shell commands, and the program, which continues from its last
// position after a restart.
func TestSubscribe(t *testing.T) {
	need.Program(t, "sh")
	need.Program(t, "curl")
	need.Program(t, "go")
	page, err := os.ReadFile("../../docs/subscribe.md")
	must(t, err)
	var commands strings.Builder
	shell, programs := programsOf(string(page))
	if len(programs) != 3 {
		t.Fatalf("%d programs", len(programs))
	}
	program := programs[0]
	for line := range strings.Lines(shell) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands.WriteString(command)
		}
	}
	p := start(t, t.TempDir())
	sequence := uint64(0)
	raise := func(reason string) {
		t.Helper()
		sequence++
		e := event.Event{Type: event.FaultRaised, Cluster: "c", Node: "node-1", Time: time.Now(), Severity: finding.Fatal,
			Subject: event.Subject{Check: "disk", Reason: reason, Kind: "disk", Name: reason},
			Stream:  "01K9Z0AAAAAAAAAAAAAAAAAAA0", Sequence: sequence,
			Data: event.Fault{ID: reason, Check: "disk", Reason: reason, Severity: finding.Fatal, Message: "it fails",
				Subject: finding.Subject{Kind: "disk", Name: reason}}}
		must(t, p.post(e))
	}
	raise("FirstFault")
	env := []string{"CENTER=" + p.url, "TOKEN=" + p.token()}
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", commands.String())
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || bytes.Count(out, []byte("FirstFault")) < 6 || !bytes.Contains(out, []byte(`"pools":`)) {
		t.Errorf("%v\n%s\n%s", err, commands.String(), out)
	}

	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	build(t, dir, "main.go", "consumer")
	// consume runs the program until it has processed an offset, and returns its output.
	consume := func(until string) string {
		t.Helper()
		log, stop := background(t, dir, "consumer", env...)
		defer stop()
		if !eventually(patience, func() bool {
			saved, _ := os.ReadFile(filepath.Join(dir, "offset"))
			return string(saved) == until
		}) {
			t.Fatalf("offset %s was not dealt with:\n%s", until, log)
		}
		return log.String()
	}
	if got := consume("1"); !strings.Contains(got, "node-1 io.github.nodeagent.fault.raised.v1 FirstFault it fails") {
		t.Error(got)
	}
	raise("SecondFault") // while it is stopped
	if got := consume("2"); strings.Contains(got, "FirstFault") || !strings.Contains(got, "SecondFault") {
		t.Errorf("it has begun again:\n%s", got)
	}
}

// programsOf splits a page into the rest and its Go programs.
func programsOf(page string) (shell string, programs []string) {
	for {
		before, rest, found := strings.Cut(page, "```go\n")
		shell += before
		if !found {
			return shell, programs
		}
		program, after, _ := strings.Cut(rest, "```\n")
		programs, page = append(programs, program), after
	}
}

func build(t *testing.T, dir, source, program string) {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, source)
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// built builds a program of docs/subscribe.md, by its place there, and returns its folder.
func built(t *testing.T, place int, name string) (dir string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/subscribe.md")
	must(t, err)
	_, programs := programsOf(string(page))
	dir = t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(programs[place]), 0o600))
	build(t, dir, "main.go", name)
	return dir
}

// background runs a program in its folder, until the test ends or stop is called.
func background(t *testing.T, dir, name string, env ...string) (log *syncedLog, stop func()) {
	t.Helper()
	log = &syncedLog{}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, name))
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), log, log
	must(t, cmd.Start())
	stop = sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(stop)
	return log, stop
}

// The webhook of docs/subscribe.md works unchanged: it accepts events signed by the center, and no others.
func TestSubscribeWebhook(t *testing.T) {
	need.Program(t, "go")
	dir := built(t, 1, "webhook")
	address := loopback.Free(t)
	h := &webhook{t: t, url: "http://" + address}
	file := h.settings("subscriptions: [{name: a, url: '" + h.url + "/hook', filter: {severity: [warning]}}]\n")
	secret, err := os.ReadFile(filepath.Join(filepath.Dir(file), "secret"))
	must(t, err)
	log, _ := background(t, dir, "webhook", "LISTEN="+address, "SECRET="+string(secret))
	p := start(t, t.TempDir(), "--subscriptions", file)
	must(t, p.post(raised("node-1", 1), raised("node-2", 1)))
	h.await("two events", func() bool {
		return strings.Contains(log.String(), "node-1 io.github.nodeagent.fault.raised.v1 Slow the name server is slow") &&
			strings.Contains(log.String(), "node-2 ")
	})
	forged, err := http.Post(h.url, "application/cloudevents-batch+json", strings.NewReader("[]")) // a test
	if err != nil || forged.StatusCode != http.StatusUnauthorized {
		t.Errorf("%v, %v", forged, err)
	}
	if err == nil {
		forged.Body.Close()
	}
}
