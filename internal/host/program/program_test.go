package program

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// script writes a program.
func script(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "program")
	if err := executable.Write(name, []byte("#!/bin/sh\n"+strings.Join(lines, "\n")+"\n")); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestRun(t *testing.T) {
	for _, test := range []struct {
		name   string
		script string
		args   []string
		want   string // exit, state, stdout, stderr
	}{
		{"ends well", "echo good; echo aside >&2", nil, `0 "exit status 0" "good\n" "aside\n"`},
		{"exit code", "echo bad; exit 3", nil, `3 "exit status 3" "bad\n" ""`},
		{"arguments are no words of a shell", `printf '%s,' "$@"`, []string{"a b", "$(id)", ";x"},
			`0 "exit status 0" "a b,$(id),;x," ""`},
		{"killed by itself", "kill -9 $$", nil, `-1 "signal: killed" "" ""`},
		{"no input", "read line || echo none", nil, `0 "exit status 0" "none\n" ""`},
		{"begins at the root", "pwd", nil, `0 "exit status 0" "/\n" ""`},
		{"is not protected from the OOM killer", // soon after its start
			"for i in $(seq 600); do grep -qx 500 /proc/self/oom_score_adj && exec echo yes; sleep 0.1; done", nil,
			`0 "exit status 0" "yes\n" ""`},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, err := new(Runner).Run(t.Context(), Command{Path: script(t, test.script), Args: test.args})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%d %q %q %q", o.Exit, o.State, o.Stdout, o.Stderr); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestRunThatCannotStart(t *testing.T) {
	for _, path := range []string{"relative", "/nonexistent/program", "/etc/passwd"} {
		if _, err := new(Runner).Run(t.Context(), Command{Path: path}); err == nil ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	o, err := new(Runner).Run(t.Context(),
		Command{Path: script(t, "head -c 5000000 /dev/zero; head -c 100000 /dev/zero >&2")})
	if err != nil || o.Exit != 0 || len(o.Stdout) != MaxOutput || len(o.Stderr) != MaxOutput {
		t.Errorf("%d and %d bytes, exit %d, %v", len(o.Stdout), len(o.Stderr), o.Exit, err)
	}
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// pidsIn returns the PIDs that a script has written to a file so far.
func pidsIn(file string) []int {
	data, _ := os.ReadFile(file)
	var pids []int
	for _, field := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// children waits for the PIDs that a script has written.
func children(t *testing.T, file string) []int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		if pids := pidsIn(file); len(pids) > 0 {
			return pids
		}
		if time.Now().After(deadline) {
			t.Fatal("no PIDs were written")
		}
	}
}

// endsWhen returns a context that ends once is returns true, at the latest after a minute.
func endsWhen(t *testing.T, is func() bool) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		for ctx.Err() == nil && !is() {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return ctx
}

func awaitGone(t *testing.T, pids ...int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		left := 0
		for _, pid := range pids {
			if alive(pid) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %v are alive", left, pids)
		}
	}
}

// leftBehind returns a file for the PIDs of processes that a script leaves behind and that Run cannot end. They end
// with the test.
func leftBehind(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "left")
	t.Cleanup(func() {
		data, _ := os.ReadFile(file) // most scripts leave none behind
		for _, field := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
	return file
}

func TestRunThatHangs(t *testing.T) {
	for name, lines := range map[string]string{
		"sleeps":                            "echo begun; echo $$ >>$1; sleep 100",
		"ignores signals":                   "trap '' TERM INT HUP; echo begun; echo $$ >>$1; while :; do sleep 1; done",
		"waits for a child":                 "sleep 100 & echo begun; echo $! $$ >>$1; wait",
		"child in a group of its own waits": "setsid sleep 100 & echo $! >>$2; echo begun; echo $$ >>$1; wait",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pids := filepath.Join(t.TempDir(), "pids")
			began := time.Now()
			ctx := endsWhen(t, func() bool { return len(pidsIn(pids)) > 0 })
			o, err := new(Runner).Run(ctx, Command{Path: script(t, lines), Args: []string{pids, leftBehind(t)}})
			if err != nil || !o.TimedOut || o.Exit != -1 || o.State != "signal: killed" ||
				string(o.Stdout) != "begun\n" {
				t.Errorf("%+v %v", o, err)
			}
			if took := time.Since(began); took > 90*time.Second {
				t.Errorf("it took %s", took)
			}
			awaitGone(t, children(t, pids)...)
		})
	}
}

// A program that ends and leaves children does not wait for them, even if they hold its output; those in its group are
// killed.
func TestRunThatLeavesChildren(t *testing.T) {
	for name, lines := range map[string]string{
		"with its output": "sleep 100 & echo $! >>$1; echo done",
		"without":         "sleep 100 >/dev/null 2>&1 & echo $! >>$1; echo done",
	} {
		t.Run(name, func(t *testing.T) {
			pids := filepath.Join(t.TempDir(), "pids")
			began := time.Now()
			o, err := new(Runner).Run(t.Context(), Command{Path: script(t, lines), Args: []string{pids}})
			if err != nil || o.Exit != 0 || string(o.Stdout) != "done\n" {
				t.Errorf("%+v %v", o, err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			awaitGone(t, children(t, pids)...)
		})
	}
}

// A frozen process replaces one in the D state: signals do not reach it. It is abandoned, not started again, and reaped
// when it continues.
func TestRunThatCannotBeKilled(t *testing.T) {
	const root = "/sys/fs/cgroup/freezer"
	need.Root(t, "makes a cgroup")
	cgroup := filepath.Join(root, "nodeagent-test-"+rand.Text())
	need.Kernel(t, "the freezer of cgroup v1", os.Mkdir(cgroup, 0o755))
	state := filepath.Join(cgroup, "freezer.state")
	t.Cleanup(func() {
		_ = os.WriteFile(state, []byte("THAWED"), 0)
		for deadline := time.Now().Add(30 * time.Second); os.Remove(cgroup) != nil && time.Now().Before(deadline); {
		}
	})
	path := script(t, "echo $$ >"+cgroup+"/cgroup.procs", "echo FROZEN >"+state, "echo not reached")
	var r Runner
	ctx := endsWhen(t, func() bool {
		text, _ := os.ReadFile(state)
		return strings.TrimSpace(string(text)) == "FROZEN"
	})
	if o, err := r.Run(ctx, Command{Path: path}); !errors.Is(err, ErrAbandoned) || !o.TimedOut {
		t.Fatalf("%+v %v", o, err)
	}
	if _, err := r.Run(t.Context(), Command{Path: path}); !errors.Is(err, ErrStuck) {
		t.Fatal(err)
	}
	if err := os.WriteFile(state, []byte("THAWED"), 0); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for !r.running.CompareAndSwap(false, true) {
		if time.Now().After(deadline) {
			t.Fatal("it was not reaped")
		}
	}
}

func TestEnvironment(t *testing.T) {
	got := strings.Join(environment([]string{"NODE_NAME=a", "NOTIFY_SOCKET=/run/x", "GOGC=off", "LANG=C"}), " ")
	if want := "NODE_NAME=a LANG=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestFollow(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	path := script(t,
		"sleep 100 & echo $! $$ >>$1; printf 'one\\ntwo\\n'; head -c 600000 /dev/zero; echo; echo three; wait")
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	skipped := 0
	err := Follow(ctx, Command{Path: path, Args: []string{pids}}, Lines{
		Each: func(line []byte) {
			if got = append(got, string(line)); string(line) == "three" {
				cancel()
			}
		},
		Skipped: func() { skipped++ },
	})
	if err != nil || strings.Join(got, " ") != "one two three" || skipped != 1 {
		t.Errorf("%q, %d skipped, %v", got, skipped, err)
	}
	awaitGone(t, children(t, pids)...)
}

func TestFollowThatEnds(t *testing.T) {
	for lines, want := range map[string]string{
		"echo no such thing >&2; exit 2":          "ended: exit status 2: no such thing",
		"echo a; exit 0":                          "it ended",
		"exec >&-; sleep 100":                     "ended: signal: killed",
		"echo a; setsid sleep 100 & echo $! >>$1": "it ended",
		"head -c 600000 /dev/zero; kill -9 $$":    "ended: signal: killed",
	} {
		began := time.Now()
		err := Follow(t.Context(), Command{Path: script(t, lines), Args: []string{leftBehind(t)}},
			Lines{Each: func([]byte) {}})
		if err == nil || !strings.Contains(err.Error(), want) || time.Since(began) > 30*time.Second {
			t.Errorf("%s: %v after %s", lines, err, time.Since(began))
		}
	}
}

func TestRead(t *testing.T) {
	var got []string
	each := Lines{Each: func(line []byte) { got = append(got, string(line)) }}
	if err := Read(t.Context(), Command{Path: script(t, "echo a; echo b; printf c")}, each); err != nil ||
		strings.Join(got, " ") != "a b" {
		t.Errorf("%q %v", got, err)
	}
	if err := Read(t.Context(), Command{Path: script(t, "exit 1")}, each); err == nil {
		t.Error("exit 1 is no error")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := Read(ctx, Command{Path: script(t, "sleep 100")}, each); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// A signal to the agent's group does not reach a program.
func TestOwnGroup(t *testing.T) {
	o, err := new(Runner).Run(t.Context(), Command{Path: script(t, "ps -o pgid= -p $$")})
	if own := strconv.Itoa(unix.Getpgrp()); err != nil || strings.TrimSpace(string(o.Stdout)) == own {
		t.Errorf("%q, ours is %s, %v", o.Stdout, own, err)
	}
}
