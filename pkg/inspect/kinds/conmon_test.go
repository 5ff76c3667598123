package kinds_test

import (
	"context"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/need"
)

// conmon runs CRI-O's monitor of a container, whose process is in the cgroup of a pod, and returns the IDs of both
// processes.
func (n *node) conmon(uid, id string) (monitor, process int) {
	n.t.Helper()
	need.Program(n.t, "conmon")
	dir := n.t.TempDir()
	runtime := filepath.Join(dir, "runtime")
	script := "#!/bin/sh\nfor word; do [ \"$last\" = --pid-file ] && file=$word; last=$word; done\n" +
		"[ -n \"$file\" ] || exit 0\nsleep 600 </dev/null >/dev/null 2>&1 &\n"
	for _, cgroup := range n.Cgroups(path.Join(n.Host.Paths.CgroupRoot, "kubepods/besteffort/pod"+uid, "crio-"+id)) {
		script += "echo $! >" + cgroup + "/cgroup.procs\n"
	}
	script += "printf %s $! >$file\nexit 0\n" // when the process is in its cgroups
	if err := executable.Write(runtime, []byte(script)); err != nil {
		n.t.Fatal(err)
	}
	n.Mkdir(dir, "crio/exits")
	out, err := exec.Command("conmon", "-c", id, "-u", id, "-n", "app", "-r", runtime, "-b", dir, "-p",
		filepath.Join(dir, "pid"), "-P", filepath.Join(dir, "monitor"), "-l", "k8s-file:"+filepath.Join(dir, "log"),
		"--exit-dir", filepath.Join(dir, "crio/exits"), "--socket-dir-path", dir).CombinedOutput()
	if err != nil {
		n.t.Fatalf("conmon: %v: %s", err, out)
	}
	pid := func(name string) (pid int) {
		for end := time.Now().Add(30 * time.Second); pid == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		if pid == 0 {
			n.t.Fatalf("conmon has written no %s: %s", name, out)
		}
		n.t.Cleanup(func() { // before its cgroup is removed
			end := time.Now().Add(30 * time.Second)
			for ; syscall.Kill(pid, syscall.SIGKILL) == nil; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					n.t.Errorf("process %d does not end", pid)
					return
				}
			}
		})
		return pid
	}
	return pid("monitor"), pid("pid")
}

// CRI-O has lost a container that still runs: its conmon and its process are the dead pod's, those of a living pod are
// alive, and no action releases a conmon.
func TestConmonLeftAlone(t *testing.T) {
	n := newNode(t)
	n.Host.Runtime.Version = func(context.Context) (*cri.VersionResponse, error) {
		return &cri.VersionResponse{RuntimeName: "cri-o"}, nil
	}
	n.Sandbox(living, sandbox)
	pids := map[int]object.Verdict{}
	for uid, id := range map[string]string{living: sandbox, dead: deadSandbox} {
		monitor, process := n.conmon(uid, id)
		pids[monitor], pids[process] = object.Live, object.Live
		if uid == dead {
			pids[monitor], pids[process] = object.Leftover, object.Leftover
		}
	}
	report := n.ripen(t, object.History{}, n.inspector())
	got := map[int]object.Verdict{}
	for _, o := range report.Objects {
		pid := o.Identity.Process.PID
		if _, ours := pids[pid]; ours && (o.Kind == object.Shim || o.Kind == object.Process) {
			got[pid] = o.Verdict
		}
	}
	if diff := cmp.Diff(pids, got); diff != "" {
		t.Error(diff, inspecttest.Whys(report, dead), inspecttest.Whys(report, living))
	}
}
