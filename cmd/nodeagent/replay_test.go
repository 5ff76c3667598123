package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/replay"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

var updateReplay = flag.Bool("update-replay", false, "write the golden output of replay")

// runReplay runs the verb on a log and returns its exit code.
func runReplay(t *testing.T, log string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := newRoot()
	cmd.SetArgs(append([]string{"replay"}, args...))
	cmd.SetIn(strings.NewReader(log))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err := cmd.ExecuteContext(t.Context())
	if err == nil {
		return out.String(), errs.String(), exitFine
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		return out.String(), errs.String(), exit.Code
	}
	return out.String(), errs.String() + err.Error(), exitCouldNotTell
}

// TestReplayGolden: testdata/replay/*.txtar holds a log ("log") and the expected output ("text", "json").
func TestReplayGolden(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "replay", "*.txtar"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			content := map[string]string{}
			for _, f := range archive.Files {
				content[f.Name] = string(f.Data)
			}
			text, _, code := runReplay(t, content["log"])
			asJSON, _, sameCode := runReplay(t, content["log"], "-o", "json", "-")
			if code != sameCode {
				t.Errorf("exit codes %d and %d", code, sameCode)
			}
			if *updateReplay {
				archive.Files = []txtar.File{{Name: "log", Data: []byte(content["log"])},
					{Name: "text", Data: []byte(text)}, {Name: "json", Data: []byte(asJSON)}}
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(content["text"], text); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(content["json"], asJSON); diff != "" {
				t.Errorf("json (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReplayExitCodes(t *testing.T) {
	const panicked = "Kernel panic - not syncing: x\n"
	missing := filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		log  string
		args []string
		want int
	}{
		"nothing wrong":   {"usb 1-1: new device\n", nil, exitFine},
		"empty":           {"", nil, exitFine},
		"something wrong": {panicked, nil, exitProblems},
		"only information": {"kexec[896]: segfault at 0 ip 00007f2a4c5d2f31 sp 00007ffd1c0d7a08 error 4 in libc.so\n",
			nil, exitFine},
		"still counting": {"unregister_netdevice: waiting for lo to become free. Usage count = 1\n", nil,
			exitFine},
		"of another format":      {panicked, []string{"--format", "kmsg"}, exitCouldNotTell},
		"an unknown format":      {panicked, []string{"--format", "csv"}, exitCouldNotTell},
		"no such file":           {"", []string{missing}, exitCouldNotTell},
		"a directory":            {"", []string{t.TempDir()}, exitCouldNotTell},
		"an unknown output":      {panicked, []string{"-o", "yaml"}, exitCouldNotTell},
		"written by programs":    {"12,1,1,-;" + panicked, nil, exitCouldNotTell},
		"no panic of the kernel": {"12,1,1,-;" + panicked + "6,2,2,-;usb 1-1: new device\n", nil, exitFine},
		"no log":                 {"# Readme\nA text.\n", nil, exitCouldNotTell},
		"behind an unknown head": {"[    1.000000] usb 1-1: new device\nnode1|" + panicked, nil, exitCouldNotTell},
	} {
		t.Run(name, func(t *testing.T) {
			if _, stderr, code := runReplay(t, c.log, c.args...); code != c.want {
				t.Errorf("exit code %d, want %d: %s", code, c.want, stderr)
			}
		})
	}
}

func TestReplayTextIsBounded(t *testing.T) {
	var log strings.Builder
	for i := range 3 * maxGroups {
		log.WriteString("I/O error, dev sd" + strings.Repeat("a", i%7+1) + string(rune('a'+i%26)) + strings.Repeat("b",
			i/182) + ", sector 1\n")
	}
	p := &replayText{}
	m, err := kernellog.NewMatcher(rules.Kernel())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (replay.Replay{}).Read(m, strings.NewReader(log.String()), p.found); err != nil {
		t.Fatal(err)
	}
	if len(p.groups) > maxGroups || p.more == 0 {
		t.Errorf("%d groups, %d more", len(p.groups), p.more)
	}
}

// TestReplayTellsAUnitOnce: the lines of a failing service match several rules, and one of the lines names it by its
// description only.
func TestReplayTellsAUnitOnce(t *testing.T) {
	const at = "Nov 21 01:02:03 host systemd[1]: "
	log := at + strings.Join([]string{
		"foo.service: Main process exited, code=exited, status=1/FAILURE",
		"foo.service: Failed with result 'exit-code'.",
		"Failed to start Foo daemon.",
		"foo.service: Scheduled restart job, restart counter is at 5.",
		"systemd-timesyncd.service: Failed with result 'exit-code'.",
		"Failed to start Network Time Synchronization.",
		"bar.service: Failed with result 'timeout'.",
		"Failed to start bar.service - Bar, a daemon.",
		"kubelet.service: Main process exited, code=killed, status=9/KILL",
		"kubelet.service: Failed with result 'signal'.",
		"Failed to start kubelet: The Kubernetes Node Agent.",
		"", "", "", // far from a unit's own line, a description is all that there is
		"Failed to start Something else.",
	}, "\n"+at) + "\n"
	out, _, _ := runReplay(t, log)
	for name, times := range map[string]int{"unit/foo.service": 1, "unit/systemd-timesyncd.service": 1,
		"unit/bar.service": 1, "unit/kubelet.service": 1, "unit/Something else": 1, ": unit/": 5} {
		if n := strings.Count(out, name); n != times {
			t.Errorf("%q is %d times in the output, not %d:\n%s", name, n, times, out)
		}
	}
	if !strings.Contains(out, "SystemdUnitFlapping: unit/foo.service; also SystemdUnitFailed\n") {
		t.Errorf("the gravest is not first, with the others:\n%s", out)
	}
}
