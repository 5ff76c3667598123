package discover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/test/need"
)

// proc is one process of a fake machine, by default the node's kubelet as root starts it.
type proc struct {
	comm, uid, cgroup, exe, mnt, user, uidMap, nspid string
	args                                             []string
}

func (p proc) write(t *testing.T, root string, pid int) {
	t.Helper()
	or := func(value, otherwise string) string {
		if value == "" {
			return otherwise
		}
		return value
	}
	dir := filepath.Join(root, "proc", fmt.Sprint(pid))
	comm := or(p.comm, "kubelet")
	if p.args == nil {
		p.args = []string{"kubelet"}
	}
	put(t, dir+"/stat", fmt.Sprintf("%d (%s) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0", pid, comm, 100+pid))
	put(t, dir+"/status", fmt.Sprintf("Uid:\t%s\nNSpid:\t%s\n", or(p.uid, "0\t0\t0\t0"), or(p.nspid, fmt.Sprint(pid))))
	put(t, dir+"/cgroup", or(p.cgroup, "0::/system.slice/kubelet.service")+"\n")
	put(t, dir+"/cmdline", strings.Join(p.args, "\x00")+"\x00")
	if p.uidMap != "" {
		put(t, dir+"/uid_map", p.uidMap)
	}
	link(t, or(p.exe, "/usr/bin/kubelet"), dir+"/exe")
	link(t, or(p.mnt, "mnt:[1]"), dir+"/ns/mnt")
	if p.user != "" {
		link(t, p.user, dir+"/ns/user")
	}
}

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := executable.Write(name, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// machine makes a machine with an init and a kubelet's program.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	proc{comm: "systemd", cgroup: "0::/init.scope", user: "user:[1]", args: []string{"/sbin/init"}}.write(t, root, 1)
	put(t, root+"/usr/bin/kubelet", "ELF")
	put(t, root+"/usr/bin/containerd", "ELF")
	put(t, root+"/usr/bin/sudo", "ELF")
	put(t, root+"/proc/sys/kernel/hostname", "node-a\n")
	return root
}

// impostors are processes called kubelet that a user can start without root's rights.
func impostors() map[string]proc {
	return map[string]proc{
		"a user's":             {uid: "1000\t1000\t1000\t1000"},
		"really a user's":      {uid: "1000\t0\t0\t0"},
		"effectively a user's": {uid: "0\t1000\t0\t0"},
		"saved a user's":       {uid: "0\t0\t1000\t0"},
		"a user's by name": {comm: "kubelet-1.36.3", uid: "1000\t1000\t1000\t1000",
			args: []string{"kubelet-1.36.3"}},
		"root of a user namespace":     {user: "user:[2]"},
		"root of an unseen namespace":  {uidMap: "0 100000 65536\n"},
		"in a pod":                     {cgroup: "0::/kubepods.slice/kubepods-burstable.slice/x"},
		"in a pod by cgroupfs":         {cgroup: "4:memory:/kubepods/besteffort/pod0c6d3a2e-4cb6-4a3f-a2b4-0f4f1f1a2b3c/x\n0::/"},
		"in a pod below a lab's root":  {cgroup: "0::/lab/kubepods/x"},
		"in a pod without QoS cgroups": {cgroup: "0::/pod0c6d3a2e-4cb6-4a3f-a2b4-0f4f1f1a2b3c/x"},
		"in one hierarchy of a pod's":  {cgroup: "3:pids:/kubepods/x\n2:cpu:/\n0::/"},
		"in Docker":                    {cgroup: "1:name=systemd:/docker/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
		"in a scope of a runtime":      {cgroup: "0::/system.slice/crio-abc.scope"},
		"in nspawn":                    {cgroup: "0::/machine.slice/machine-x.scope/payload"},
		"in LXC":                       {cgroup: "0::/lxc.payload.x/y"},
		"in a namespace of containerd": {cgroup: "0::/default/mine"},
		"in a session":                 {cgroup: "0::/user.slice/user-0.slice/session-1.scope"},
		"in a user's manager":          {cgroup: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service"},
		"a setuid program":             {exe: "/usr/bin/sudo"},
		"in a PID namespace":           {nspid: "700\t1"},
	}
}

// doubtful are processes called kubelet that only root can start: whether they are the node's is undecidable.
func doubtful() map[string]struct {
	proc
	make func(t *testing.T, root string)
} {
	return map[string]struct {
		proc
		make func(t *testing.T, root string)
	}{
		"in a mount namespace": {proc: proc{mnt: "mnt:[2]"}},
		"a program that others may write": {proc{exe: "/opt/kubelet"}, func(t *testing.T, root string) {
			put(t, root+"/opt/kubelet", "ELF")
			chmod(t, root+"/opt/kubelet", 0o775)
		}},
		"a program of a user's": {proc{exe: "/opt/kubelet"}, func(t *testing.T, root string) {
			put(t, root+"/opt/kubelet", "ELF")
			chown(t, root+"/opt/kubelet")
		}},
		"a program in a folder that others may write": {proc{exe: "/opt/x/kubelet"}, func(t *testing.T, root string) {
			put(t, root+"/opt/x/kubelet", "ELF")
			chmod(t, root+"/opt", 0o1777|os.ModeSticky)
		}},
		"a program that is gone from a user's folder": {proc{exe: "/opt/x/kubelet (deleted)"},
			func(t *testing.T, root string) {
				put(t, root+"/opt/x/other", "ELF")
				chown(t, root+"/opt/x")
			}},
		"a root directory of a user's": {proc{args: []string{"kubelet", "--root-dir=/home/u/kubelet"}},
			func(t *testing.T, root string) {
				put(t, root+"/home/u/kubelet/x", "")
				chown(t, root+"/home/u")
			}},
	}
}

func chmod(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

func chown(t *testing.T, name string) {
	t.Helper()
	need.Root(t, "gives a file away")
	if err := os.Chown(name, 65534, 65534); err != nil {
		t.Fatal(err)
	}
}

func finder(root string, bend ...func(*host.Paths)) func() (host.Process, error) {
	paths := host.Paths{InitPID: 1}
	for _, b := range bend {
		b(&paths)
	}
	return discover.KubeletFinder(host.Files{Root: root}, paths)
}
