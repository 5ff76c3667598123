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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

var (
	inside = flag.Bool("inside", false, "this is the guest: what is broken here harms nobody")
	binary = flag.String("agent", "", "the agent")
	repo   = flag.String("repo", "", "the checkout")

	modules  = flag.String("modules", "", "the folder with kernel modules that make faults")
	programs = flag.String("programs", "", "where the packages are whose programs run in the guest only")
)

func needGuest(t *testing.T) {
	t.Helper()
	need.Flag(t, *inside, "-guest of test/guest: breaks the machine that it runs on")
}

// agent is a daemon that watches the guest, which is not a node of Kubernetes.
type agent struct {
	t      *testing.T
	config string
	log    string
	last   *lastStatus
}

// lastStatus is the agent's last answer: parallel tests need not each ask it several times a second.
type lastStatus struct {
	mu sync.Mutex // guards all below, and is held during a request to the agent
	s  status
	at time.Time
}

// shared is the agent that watches the guest while many tests break it in parallel.
var shared struct {
	once  sync.Once
	agent *agent
}

// watch returns an agent that watches while this test and others break the guest in parallel, each with its own
// devices.
func watch(t *testing.T) *agent {
	t.Helper()
	needGuest(t)
	t.Parallel()
	shared.once.Do(func() {
		dir := "/run/tmp/agent"
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		shared.agent, _ = start(t, dir, "checks: {hung-tasks: {after: 30s}, infiniband: {every: 30s}}\n")
		shared.agent.last = &lastStatus{}
	})
	if shared.agent == nil {
		t.Fatal("there is no agent")
	}
	a := *shared.agent
	a.t = t
	return &a
}

// start starts an agent with its own directory. Settings are those that differ from the defaults. The caller must call
// the returned function.
func start(t *testing.T, dir, settings string) (*agent, func()) {
	t.Helper()
	needGuest(t)
	a := &agent{t: t, config: filepath.Join(dir, "config.yaml"), log: filepath.Join(dir, "log")}
	text := fmt.Sprintf("stateDir: %[1]s/state\nsocket: %[1]s/sock\nreport: {metrics: {enabled: false}}\n%s", dir,
		settings)
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
	a.await(time.Minute, "the agent to answer", func(s status) bool { return s.PID != 0 && s.Readiness.Ready })
	return a, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
}

type status struct {
	PID       int
	Readiness struct{ Ready bool }
	Findings  []believed
	Checks    []checkStatus
}

type checkStatus struct{ Check, Status, Error, Why string }

type believed struct {
	// Message is the reported one, Latest that of the latest observation
	Check, Reason, Severity, Message, Latest, ID string
	Subject                                      struct{ Kind, Name string }
	Raised                                       struct{ Wall time.Time }
}

// status returns the agent's answer, at most half a second old.
func (a *agent) status() status {
	if a.last == nil {
		return a.ask()
	}
	a.last.mu.Lock()
	defer a.last.mu.Unlock()
	if time.Since(a.last.at) > time.Second/2 {
		a.last.s = a.ask()
		a.last.at = time.Now()
	}
	return a.last.s
}

func (a *agent) ask() (s status) {
	// the exit code depends on the findings
	out, _ := exec.Command(*binary, "--config", a.config, "status", "-o", "json").Output()
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
	log := read(a.log)
	a.t.Fatalf("waited %s for %s; findings %+v, checks %+v; end of the log:\n%s", limit, what, s.Findings, s.Checks,
		log[max(0, len(log)-2000):])
}

// awaitReason waits until a reason is believed of a subject, or no longer is. An empty reason or subject matches any.
func (a *agent) awaitReason(check, reason, subject string, there bool) {
	a.t.Helper()
	a.awaitFound(check, func(f believed) bool {
		return (reason == "" || f.Reason == reason) && (subject == "" || f.Subject.Name == subject)
	}, there)
}

// awaitFound waits until a matching finding of a check is believed, or none is.
func (a *agent) awaitFound(check string, is func(believed) bool, there bool) {
	a.t.Helper()
	began := time.Now()
	a.await(3*time.Minute, fmt.Sprintf("%s: %v", check, there), func(s status) bool {
		at := slices.IndexFunc(s.Findings, func(f believed) bool { return f.Check == check && is(f) })
		if at >= 0 && there {
			f := s.Findings[at]
			a.t.Logf("found after %s: %s %s %s of %s: %s", time.Since(began).Round(time.Second/10), f.Check, f.Severity,
				f.Reason, f.Subject.Name, f.Message)
		} else if at < 0 && !there && s.PID != 0 {
			a.t.Logf("cleared after %s: %s", time.Since(began).Round(time.Second/10), check)
		}
		return s.PID != 0 && at >= 0 == there
	})
}

// awaitSaid waits until the kernel log check believes a reason of a subject, or no longer does. It has one finding for
// each subject, which lists the subject's other faults. An empty subject matches any.
func (a *agent) awaitSaid(reason, subject string, there bool) {
	a.t.Helper()
	a.awaitFound("kernel-log", func(f believed) bool {
		_, also, _ := strings.Cut(f.Latest, "; also ")
		return (subject == "" || f.Subject.Name == subject) && (f.Reason == reason || strings.Contains(also, reason))
	}, there)
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

// read returns a file's text, or "" if there is no file.
func read(file string) string {
	text, _ := os.ReadFile(file)
	return strings.TrimSpace(string(text))
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within a minute", what)
		}
	}
}

// monitorLock is held during a command: they run one at a time.
var monitorLock sync.Mutex

// monitor runs a command of qemu's monitor, which changes the emulated machine.
func monitor(t *testing.T, command string) {
	t.Helper()
	if answer := ask(t, command); answer != "done" {
		t.Fatalf("%s: %s", command, answer)
	}
}

// ask runs a command with more than one possible answer.
func ask(t *testing.T, command string) string {
	t.Helper()
	monitorLock.Lock()
	defer monitorLock.Unlock()
	line, err := os.OpenFile("/dev/ttyS1", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	if _, err := fmt.Fprintln(line, command); err != nil {
		t.Fatal(err)
	}
	answer, err := bufio.NewReader(line).ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %q, %v", command, answer, err)
	}
	return strings.TrimSpace(answer)
}
