package mutatetest

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/test/need"
)

// Cgroups creates the cgroup of a pod, and optionally a child, in every mounted hierarchy, and returns the directories.
func (n *Node) Cgroups(uid, below string) []string {
	n.t.Helper()
	pod := filepath.Join("kubepods/besteffort", "pod"+uid)
	return n.cgroupsBelow(filepath.Join(pod, below), func(top string) {
		removeCgroups(filepath.Join(top, pod))
		for _, around := range []string{filepath.Dir(filepath.Join(top, pod)), filepath.Join(top, "kubepods"), top} {
			_ = os.Remove(around) // the last pod removes it
		}
	})
}

// IntoV1 changes a command so that a shell moves to those of cgroups that are of cgroup v1, and then executes it: v1 does
// not show those of an ended thread. If none is, it moves to all.
func IntoV1(cgroups []string) func(*exec.Cmd) {
	v1 := slices.DeleteFunc(slices.Clone(cgroups), func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "cgroup.controllers"))
		return err == nil
	})
	if len(v1) > 0 {
		cgroups = v1
	}
	return func(c *exec.Cmd) {
		c.Args = append([]string{"sh", "-c", `program=$1; shift; for dir; do echo $$ > "$dir/cgroup.procs" || exit; done; exec "$program"`,
			"sh", c.Path}, cgroups...)
		c.Path = "/bin/sh"
	}
}

// cgroupsBelow creates a cgroup below the node's root in every mounted hierarchy. remove is called with each of these
// roots at the end.
func (n *Node) cgroupsBelow(name string, remove func(top string)) []string {
	n.t.Helper()
	mounts, err := mount.Table(n.Host)
	if err != nil {
		n.t.Fatal(err)
	}
	hierarchies := cgroup.CgroupHierarchies(mounts, n.Host.Paths.CgroupMount)
	need.Has(n.t, len(hierarchies) > 0, "mounted cgroups")
	var dirs []string
	for _, h := range hierarchies {
		top := filepath.Join(h.Point, n.Host.Paths.CgroupRoot)
		n.t.Cleanup(func() { remove(top) })
		n.cgroup(h.Point, filepath.Join(top, name))
		dirs = append(dirs, filepath.Join(top, name))
	}
	return dirs
}

// cgroup creates a cgroup and its parents. A v1 cpuset accepts processes only if it has CPUs and memory nodes.
func (n *Node) cgroup(point, dir string) {
	rel, _ := filepath.Rel(point, dir)
	at := point
	for part := range strings.SplitSeq(rel, "/") {
		parent := at
		at = filepath.Join(at, part)
		n.Mkdir(at)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(filepath.Join(parent, file)); err == nil &&
				len(strings.TrimSpace(string(value))) > 0 {
				_ = os.WriteFile(filepath.Join(at, file), value, 0)
			}
		}
	}
}

// removeCgroups removes a cgroup and its descendants, killing the processes left in them.
func removeCgroups(dir string) {
	for _, file := range []string{"freezer.state", "cgroup.freeze"} {
		_ = os.WriteFile(filepath.Join(dir, file),
			[]byte(map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"}[file]), 0)
	}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			removeCgroups(filepath.Join(dir, entry.Name()))
		}
	}
	// A killed process leaves its cgroup shortly after its parent was notified.
	for range 3000 {
		if err := os.Remove(dir); !errors.Is(err, syscall.EBUSY) {
			return
		}
		_ = syscall.Nanosleep(&syscall.Timespec{Nsec: 10_000_000}, nil)
	}
}

// Shell starts a shell script as a process of a pod: a member of the cgroups given. It must print a line when it is
// ready.
func (n *Node) Shell(uid string, cgroups []string, script string) mutate.Process {
	n.t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	pid := cmd.Process.Pid
	reaped := make(chan struct{})
	go func() { // like a shim
		_ = cmd.Wait()
		close(reaped)
	}()
	n.t.Cleanup(func() {
		for _, dir := range cgroups {
			_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
		}
		select {
		case <-reaped:
		default:
			_ = syscall.Kill(-pid, syscall.SIGKILL) // with its children
			<-reaped
		}
	})
	ready := bufio.NewReader(out)
	if _, err := ready.ReadString('\n'); err != nil {
		n.t.Fatalf("%s: %v", script, err)
	}
	for _, dir := range cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			n.t.Fatalf("%s: %v", dir, err)
		}
	}
	stat, err := n.Host.ProcStat(pid)
	if err != nil {
		n.t.Fatal(err)
	}
	return mutate.Process{PID: pid, StartTime: stat.StartTime, UID: uid}
}
