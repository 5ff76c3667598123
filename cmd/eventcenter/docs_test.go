package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/event/schemas/schematest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

// document returns a page of docs/, and demands the programs that its examples need.
func document(t *testing.T, name string, programs ...string) string {
	t.Helper()
	for _, program := range programs {
		need.Program(t, program)
	}
	text := read(t, filepath.Join("../../docs", name))
	return string(text)
}

// indented returns the indented lines of a text, shell commands, except for builds.
func indented(text string) (commands string) {
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "    "); ok && !strings.HasPrefix(command, "make ") {
			commands += command
		}
	}
	return commands
}

// split returns a page without its fenced programs in a language, and these.
func split(page, language string) (rest string, programs []string) {
	for {
		before, after, found := strings.Cut(page, "```"+language+"\n")
		rest += before
		if !found {
			return rest, programs
		}
		program, after, _ := strings.Cut(after, "```\n")
		programs, page = append(programs, program), after
	}
}

// run runs a program in a folder with more environment, and returns its output.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, args, out)
	}
	return string(out)
}

// environment names the center to an example.
func (p *process) environment() []string { return []string{"CENTER=" + p.url, "TOKEN=" + p.token()} }

// built builds a Go program of docs/subscribe.md, by its place there, and returns its folder.
func built(t *testing.T, place int, name string) (dir string) {
	t.Helper()
	_, programs := split(document(t, "subscribe.md", "go"), "go")
	dir = t.TempDir()
	put(t, dir, "main.go", programs[place])
	run(t, dir, nil, "go", "build", "-o", name, "main.go")
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

// The commands of the quick start work unchanged, except for the port and the build.
func TestQuickStart(t *testing.T) {
	_, text, _ := strings.Cut(document(t, "event-center.md", "sh", "curl"), "## Quick start\n")
	text, _, _ = strings.Cut(text, "\n## ")
	commands := indented(text)
	if strings.Count(commands, "\n") < 10 {
		t.Fatalf("only\n%s", commands)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\nEVENTCENTER_TEST_MAIN=1 exec '" + os.Args[0] + "' \"$@\"\n"
	must(t, executable.Write(filepath.Join(dir, "eventcenter"), []byte(script)))
	commands = strings.Replace(commands, " &\n", " --listen 127.0.0.1:0 & pid=$!\ntrap 'kill $pid; wait $pid' EXIT\n"+
		"until [ -s eventcenter-data/address ]; do sleep 0.1; done\n", 1)
	commands = strings.ReplaceAll(commands, "http://127.0.0.1:10685", "$(cat eventcenter-data/address)")
	out := run(t, dir, nil, "sh", "-euc", commands)
	must(t, contains(out, "data in ", `{"offset":"1","stored":1`, "CLUSTER", "SEVERITY", "com.example.hello", "hello",
		"the whole journal can be read", "event: bookmark", "id: 1\ndata: ", "/login\ncode: "))
}

// The scripts of docs/send-events.md raise and end a fault unchanged, by events that fit the consumers and the schemas.
func TestSendEvents(t *testing.T) {
	page := document(t, "send-events.md", "sh", "curl", "python3")
	p := start(t, t.TempDir())
	for language, shell := range map[string][]string{"sh": {"sh", "-euc"}, "python": {"python3", "-c"}} {
		_, scripts := split(page, language)
		lines := strings.Split(strings.TrimSpace(scripts[0]), "\n")
		if len(lines) < 9 || len(lines) > 11 {
			t.Fatalf("%s: %d lines", language, len(lines))
		}
		end := len(lines) - 1
		raise, clear := lines[:end], append(slices.Clone(lines[:end-1]), lines[end])
		run(t, "", p.environment(), shell[0], shell[1], strings.Join(raise, "\n"))
		must(t, p.has("/v1/faults", http.StatusOK, `"reason":"FanStopped"`, `"detector":"fan-`, `"node":"node-1"`))
		run(t, "", p.environment(), shell[0], shell[1], strings.Join(clear, "\n"))
		must(t, p.has("/v1/faults", http.StatusOK, `"faults":[]`))
	}
	list := p.events(t)
	if len(list.Events) != 4 {
		t.Errorf("%d events", len(list.Events))
	}
	for _, item := range list.Events {
		must(t, errors.Join(schematest.Problem(item.Event),
			contains(string(item.Event), `"partitionkey":"node-1"`, `"subject":"fan/FanStopped/fan/fan3"`)))
	}
}

// events returns the first page of the journal.
func (p *process) events(t *testing.T) (list api.List) {
	t.Helper()
	_, text, err := p.do(http.MethodGet, "/v1/events", "", nil)
	must(t, errors.Join(err, json.Unmarshal(text, &list)))
	return list
}

// fatal is a fatal fault of a disk.
func fatal(cluster, node, reason string, sequence uint64) event.Event {
	e := raised(node, sequence)
	e.Cluster, e.Severity, e.Time = cluster, finding.Fatal, time.Now()
	e.Subject = event.Subject{Check: "disk", Reason: reason, Kind: "disk", Name: "sda"}
	e.Data = event.Fault{ID: reason, Check: "disk", Reason: reason, Severity: finding.Fatal, Message: "it fails",
		Subject: finding.Subject{Kind: "disk", Name: "sda"}, RaisedAt: e.Time, ObservedAt: e.Time}
	return e
}

// The consumers of docs/subscribe.md work unchanged: the shell commands, and the program, which continues from its last
// position after a restart.
func TestSubscribe(t *testing.T) {
	shell, programs := split(document(t, "subscribe.md", "sh", "curl"), "go")
	if len(programs) != 3 {
		t.Fatalf("%d programs", len(programs))
	}
	p := start(t, t.TempDir())
	must(t, p.post(fatal("c", "node-1", "FirstFault", 1)))
	out := run(t, "", p.environment(), "sh", "-euc", indented(shell))
	if strings.Count(out, "FirstFault") < 6 || !strings.Contains(out, `"pools":`) {
		t.Errorf("%s\n%s", indented(shell), out)
	}
	dir, journal := built(t, 0, "consumer"), p.events(t).Journal
	// consume runs the program until it has processed an offset, and returns its output.
	consume := func(until string) string {
		t.Helper()
		log, stop := background(t, dir, "consumer", p.environment()...)
		defer stop()
		await(t, func() error {
			saved, _ := os.ReadFile(filepath.Join(dir, "offset"))
			return unless(string(saved) == until+" "+journal, "at offset %s:\n%s", saved, log)
		})
		return log.String()
	}
	if got := consume("1"); !strings.Contains(got, "node-1 io.github.nodeagent.fault.raised.v1 FirstFault it fails") {
		t.Error(got)
	}
	must(t, p.post(fatal("c", "node-1", "SecondFault", 2))) // while it is stopped
	if got := consume("2"); strings.Contains(got, "FirstFault") || !strings.Contains(got, "SecondFault") {
		t.Errorf("it has begun again:\n%s", got)
	}
	bare := `{"specversion":"1.0","id":"1","time":"2026-01-02T03:04:05Z","source":"/clusters/c/nodes/node-2/fan",
	 "type":"io.github.nodeagent.fault.raised.v1","data":{"check":"fan","reason":"FanStopped","severity":"fatal","subject":{"kind":"fan"}}}`
	if status, answer, err := p.do(http.MethodPost, "/v1/events", event.MediaType, []byte(bare)); status != http.StatusOK {
		t.Fatalf("%s, %v", answer, err)
	}
	if got := consume("3"); !strings.Contains(got, "/clusters/c/nodes/node-2/fan io.github.nodeagent.fault.raised.v1 FanStopped") {
		t.Errorf("a detector's event names no node: %s", got)
	}
	must(t, os.WriteFile(filepath.Join(dir, "offset"), []byte("3 another"), 0o600)) // as after a restore from a backup
	if got := consume("3"); !strings.Contains(got, "FirstFault") {
		t.Errorf("it follows another journal from its old offset: %s", got)
	}
}

// The webhook of docs/subscribe.md works unchanged: it accepts events signed by the center, and no others.
func TestSubscribeWebhook(t *testing.T) {
	dir := built(t, 1, "webhook")
	address := loopback.Free(t)
	h := &webhook{t: t, url: "http://" + address}
	file := h.settings("subscriptions: [{name: a, url: '" + h.url + "/hook', filter: {severity: [warning]}}]\n")
	secret := read(t, filepath.Join(filepath.Dir(file), "secret"))
	log, _ := background(t, dir, "webhook", "LISTEN="+address, "SECRET="+string(secret))
	p := start(t, t.TempDir(), "--subscriptions", file)
	must(t, p.post(raised("node-1", 1), raised("node-2", 1)))
	await(t, func() error {
		return contains(log.String(), "node-1 io.github.nodeagent.fault.raised.v1 Slow the name server is slow", "node-2 ")
	})
	forged, err := http.Post(h.url, "application/cloudevents-batch+json", strings.NewReader("[]")) // a test
	must(t, err)
	if forged.Body.Close(); forged.StatusCode != http.StatusUnauthorized {
		t.Error(forged.Status)
	}
}

// The scheduler extender of docs/subscribe.md works unchanged: it filters nodes with a fatal fault, only of its own
// cluster, and none if the center is away.
func TestSubscribeAvoid(t *testing.T) {
	dir := built(t, 2, "extender")
	p := start(t, t.TempDir())
	must(t, p.post(fatal("c", "node-1", "Dead", 1), fatal("other", "node-2", "Dead", 1)))
	address := loopback.Free(t)
	log, _ := background(t, dir, "extender", append(p.environment(), "CLUSTER=c", "LISTEN="+address)...)
	type result struct {
		NodeNames   []string
		FailedNodes map[string]string
	}
	awaits := func(want result) {
		t.Helper()
		await(t, func() error {
			body := `{"Pod":{},"Nodes":null,"NodeNames":["node-1","node-2","node-3"]}`
			answer, err := http.Post("http://"+address+"/filter", "application/json", strings.NewReader(body)) // a test
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			var got result
			err = json.NewDecoder(answer.Body).Decode(&got)
			return unless(err == nil && cmp.Equal(want, got), "%+v, %v\n%s", got, err, log)
		})
	}
	awaits(result{[]string{"node-2", "node-3"}, map[string]string{"node-1": "[{disk Dead disk/sda}]"}})
	p.stop(syscall.SIGKILL)
	awaits(result{[]string{"node-1", "node-2", "node-3"}, map[string]string{}})
}
