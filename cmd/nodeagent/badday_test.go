package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/test/need"
)

// asProgram is the variable that makes the test binary act as nodeagent itself.
const asProgram = "NODEAGENT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	var err error
	switch {
	case os.Getenv(asNode) != "":
		err = beNode(os.Getenv(asNode), os.Args[1])
	case os.Getenv(asDaemon) != "":
		err = beDaemon()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// badDay is an installation of the agent on this machine without any reporter.
type badDay struct {
	t                  *testing.T
	dir, state, config string
	program            string
}

func newBadDay(t *testing.T) *badDay {
	t.Helper()
	need.Root(t, "breaks a node of its own for real")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d := &badDay{t: t, dir: dir, state: filepath.Join(dir, "state"), config: filepath.Join(dir, "config.yaml"),
		program: program}
	text := fmt.Sprintf("stateDir: %s\nsocket: %s/run/agent.sock\nreport: {metrics: {enabled: false}, conditions: "+
		"{enabled: false}, events: {enabled: false}}\n", d.state, dir)
	for _, err := range []error{os.Mkdir(d.state, 0o700), os.WriteFile(d.config, []byte(text), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d *badDay) command(args ...string) *exec.Cmd {
	cmd := exec.Command(d.program, append([]string{"--config", d.config}, args...)...) // its time is measured
	cmd.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// answer is the output of a command, its exit code, and how long it took.
type answer struct {
	screen string
	code   int
	took   time.Duration
}

func ask(t *testing.T, cmd *exec.Cmd) answer {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	err := cmd.Run()
	a := answer{strings.Join(strings.Fields(out.String()), " "), cmd.ProcessState.ExitCode(), time.Since(began)}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return a
}

// expect fails unless the answer came within limit, with one of the codes, and contains all texts.
func (a answer) expect(t *testing.T, limit time.Duration, codes []int, texts ...string) {
	t.Helper()
	if a.took > limit {
		t.Errorf("took %s, more than %s", a.took, limit)
	}
	if !slices.Contains(codes, a.code) {
		t.Errorf("exit code %d, want one of %d", a.code, codes)
	}
	for _, text := range texts {
		if !strings.Contains(a.screen, text) {
			t.Errorf("the screen does not say %q", text)
		}
	}
	if strings.Contains(a.screen, "goroutine ") || strings.Contains(a.screen, "context deadline exceeded. ") {
		t.Error("the screen is not for people")
	}
	if t.Failed() {
		t.Log(a.screen)
	}
}

// daemon starts the daemon and waits until it answers. The daemon ends with the test.
func (d *badDay) daemon() *exec.Cmd {
	d.t.Helper()
	cmd := d.command("run")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || d.t.Failed() {
			d.t.Errorf("the daemon: %v\n%s", err, log.String())
		}
	})
	if a := ask(d.t, d.command("ready", "--wait=2m")); a.code != 0 {
		d.t.Fatalf("%+v", a)
	}
	return cmd
}

// await polls the status until it contains text.
func (d *badDay) await(text string, limit time.Duration) answer {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), limit)
	defer cancel()
	for {
		a := ask(d.t, d.command("status"))
		if strings.Contains(a.screen, text) {
			return a
		}
		select {
		case <-ctx.Done():
			d.t.Fatalf("after %s the status does not say %q: %s", limit, text, a.screen)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (d *badDay) mount(source, kind, options string) {
	d.t.Helper()
	if err := unix.Mount(source, d.state, kind, 0, options); err != nil {
		d.t.Fatalf("mount %s: %v", kind, err)
	}
	d.t.Cleanup(func() {
		if err := unix.Unmount(d.state, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			d.t.Error(err)
		}
	})
}

// soon is the longest time a command may take if something hangs for ever: ten times the documented bound, because test
// machines are slower and busier than nodes.
const soon = 50 * time.Second

var anyCode, notFine = []int{exitFine, exitProblems, exitCouldNotTell}, []int{exitProblems, exitCouldNotTell}

func TestBadDayNoDaemon(t *testing.T) {
	d := newBadDay(t)
	ask(t, d.command("status")).expect(t, soon, notFine, "No agent is running", "systemctl start nodeagent", "STORAGE",
		"checks in ")
	ask(t, d.command("check")).expect(t, soon, anyCode, "checks in ")
}

func TestBadDayStateDiskFull(t *testing.T) {
	d := newBadDay(t)
	d.mount("none", "tmpfs", "size=4k")
	d.daemon()
	ask(t, d.command("status")).expect(t, soon, []int{exitProblems}, "StateNotSafe", "no space left on device",
		"THE AGENT ITSELF")
	ask(t, d.command("check")).expect(t, soon, anyCode, "checks in ")
}

func TestBadDayStateReadOnly(t *testing.T) {
	d := newBadDay(t)
	d.mount("none", "tmpfs", "ro")
	d.daemon()
	ask(t, d.command("status")).expect(t, soon, []int{exitProblems}, "StateNotSafe", "read-only file system",
		"THE AGENT ITSELF")
	ask(t, d.command("inspect")).expect(t, soon, anyCode, "objects:")
}

func TestBadDayStateCorrupt(t *testing.T) {
	d := newBadDay(t)
	file := filepath.Join(d.state, "state.db")
	if err := os.WriteFile(file, bytes.Repeat([]byte("not a database "), 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	d.daemon()
	ask(t, d.command("status")).expect(t, soon, anyCode, "nodeagent dev, pid ")
	if _, err := os.Stat(file + ".corrupt"); err != nil {
		t.Errorf("the corrupt file is not kept: %v", err)
	}
}

// The disk with the state hangs: a frozen filesystem accepts writes and completes none of them.
func TestBadDayStateDiskHangs(t *testing.T) {
	t.Parallel() // it mostly waits
	d := newBadDay(t)
	image := filepath.Join(d.dir, "disk.img")
	device := ""
	for _, argv := range [][]string{
		{"truncate", "--size=32M", image}, {"mkfs.ext4", "-q", "-F", image}, {"losetup", "--find", "--show", image},
	} {
		out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
		device = strings.TrimSpace(string(out))
	}
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil { // the test has ended
			t.Errorf("%v: %s", err, out)
		}
	})
	d.mount(device, "ext4", "")
	d.daemon()
	thaw := func() error {
		return exec.Command("fsfreeze", "--unfreeze", d.state).Run() // also after the test has ended
	}
	if out, err := exec.CommandContext(t.Context(), "fsfreeze", "--freeze", d.state).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = thaw() }) // fails if it is thawed already
	d.t.Log(d.await("its disk hangs", 2*time.Minute).took)
	ask(t, d.command("status")).expect(t, soon, notFine, "a write to "+d.state+"/state.db has not ended")
	ask(t, d.command("check")).expect(t, soon, anyCode, "checks in ")
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	d.awaitNot("its disk hangs", time.Minute)
}

// awaitNot polls the status until it no longer contains text.
func (d *badDay) awaitNot(text string, limit time.Duration) {
	d.t.Helper()
	for began := time.Now(); ; {
		a := ask(d.t, d.command("status"))
		if !strings.Contains(a.screen, text) {
			return
		}
		if time.Since(began) > limit {
			d.t.Fatalf("the status still says %q: %s", text, a.screen)
		}
	}
}

// A stopped daemon accepts connections and answers none.
func TestBadDayDaemonStopped(t *testing.T) {
	t.Parallel() // it mostly waits
	d := newBadDay(t)
	daemon := d.daemon()
	hosttest.Stop(t, daemon.Process.Pid)
	stopped := fmt.Sprintf("process %d is stopped by a signal or a debugger, kill -CONT %[1]d", daemon.Process.Pid)
	ask(t, d.command("status")).expect(t, soon, notFine, "The agent does not answer", stopped, "STORAGE")
	ask(t, d.command("status", "-o", "json")).expect(t, soon, notFine, `"agent":"the agent does not answer`)
	ask(t, d.command("check")).expect(t, soon, anyCode, "checks in ")
	ask(t, d.command("inspect")).expect(t, soon, notFine, stopped, "earlier passes do not count")
	ask(t, d.command("ready")).expect(t, soon, []int{exitProblems}, "not ready: the agent does not answer")
	if err := daemon.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	ask(t, d.command("ready", "--wait=2m")).expect(t, 2*time.Minute, []int{exitFine}, "ready")
}

// A user who is not root gets a message about that; it is not reported as a fault.
func TestBadDayNobody(t *testing.T) {
	d := newBadDay(t)
	d.daemon()
	open, err := os.MkdirTemp("", "nodeagent-nobody-") // other users cannot enter the test's own directories
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(open) })
	program, err := os.ReadFile(d.program)
	if err != nil {
		t.Fatal(err)
	}
	copied, config := filepath.Join(open, "nodeagent"), filepath.Join(open, "config.yaml")
	for _, err := range []error{
		os.Chmod(open, 0o755), executable.Write(copied, program),
		os.WriteFile(config, fmt.Appendf(nil, "socket: %s/run/agent.sock\n", d.dir), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	asNobody := func(args ...string) *exec.Cmd {
		n := &badDay{t: t, config: config, program: copied}
		cmd := n.command(args...)
		cmd.Dir = "/"
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		return cmd
	}
	status := ask(t, asNobody("status"))
	status.expect(t, soon, notFine, "Only root may query the running agent", "was not run as root", "UNKNOWN")
	if strings.Contains(status.screen, "RuntimeFailing") || strings.Contains(status.screen, "systemctl start") {
		t.Errorf("a fault is made of missing rights: %s", status.screen)
	}
	ask(t, asNobody("check")).expect(t, soon, notFine, "was not run as root")
}

// A mount that blocks every process that touches it.
func TestBadDayHungMount(t *testing.T) {
	t.Parallel() // it mostly waits
	d := newBadDay(t)
	mount := hosttest.HangingFUSE(t)
	d.daemon()
	ask(t, d.command("check", "hung-mounts")).expect(t, checkLimit+soon, notFine, mount)
	ask(t, d.command("check")).expect(t, checkLimit+soon, notFine, mount, "checks in ")
	ask(t, d.command("status")).expect(t, soon, anyCode, "pid ")
	d.await(mount, 2*time.Minute)
}
