// Package inside holds the tests that run in the guest: see test/guest.
package inside

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	inside = flag.Bool("inside", false, "this is the guest: what is broken here harms nobody")
	binary = flag.String("agent", "", "the agent")
)

func needGuest(t *testing.T) {
	t.Helper()
	if !*inside {
		t.Skipf("%s breaks the machine that it runs on: go test ./test/guest -args -guest", t.Name())
	}
}

// agent is a daemon that watches the guest, which is no node of Kubernetes.
type agent struct {
	t      *testing.T
	config string
	log    string
}

// watch starts the agent for one test. Settings are the text under "checks:".
func watch(t *testing.T, settings string) *agent {
	t.Helper()
	needGuest(t)
	dir := t.TempDir()
	a := &agent{t: t, config: filepath.Join(dir, "config.yaml"), log: filepath.Join(dir, "log")}
	text := fmt.Sprintf("stateDir: %[1]s/state\nsocket: %[1]s/sock\nreport: {metrics: {enabled: false}}\n%s", dir, settings)
	if err := os.WriteFile(a.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(a.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(*binary, "run", "--config", a.config)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(a.log)
			t.Logf("the agent's log:\n%s", text)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	a.await(time.Minute, "the agent to answer", func(s status) bool { return s.PID != 0 && s.Readiness.Ready })
	return a
}

type status struct {
	PID       int
	Readiness struct{ Ready bool }
	Findings  []struct {
		Check, Reason, Severity, Message string
		Subject                          struct{ Kind, Name string }
	}
	Checks []struct{ Check, Status, Error, Why string }
}

func (a *agent) status() (s status) {
	out, _ := exec.Command(*binary, "--config", a.config, "status", "-o", "json").Output() // the exit code tells what the answer does
	_ = json.Unmarshal(out, &s)
	return s
}

func (a *agent) await(limit time.Duration, what string, is func(status) bool) {
	a.t.Helper()
	var s status
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if s = a.status(); is(s) {
			return
		}
	}
	a.t.Fatalf("waited %s for %s; findings %+v, checks %+v", limit, what, s.Findings, s.Checks)
}

// awaitReason waits until a reason is believed of a subject, or no longer is.
func (a *agent) awaitReason(check, reason, subject string, there bool) {
	a.t.Helper()
	a.await(3*time.Minute, fmt.Sprintf("%s of %s by %s: %v", reason, subject, check, there), func(s status) bool {
		found := false
		for _, f := range s.Findings {
			found = found || f.Check == check && (reason == "" || f.Reason == reason) && (subject == "" || f.Subject.Name == subject)
		}
		return s.PID != 0 && found == there
	})
}

// run runs a command of the guest.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// read returns a file's text, or nothing where there is none.
func read(file string) string {
	text, _ := os.ReadFile(file)
	return strings.TrimSpace(string(text))
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within a minute", what)
		}
	}
}

// wish has the machine that emulates the guest do something to it.
func wish(t *testing.T, command string) {
	t.Helper()
	line, err := os.OpenFile("/dev/ttyS1", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	if _, err := fmt.Fprintln(line, command); err != nil {
		t.Fatal(err)
	}
	if answer, err := bufio.NewReader(line).ReadString('\n'); err != nil || strings.TrimSpace(answer) != "done" {
		t.Fatalf("%s: %q, %v", command, answer, err)
	}
}
