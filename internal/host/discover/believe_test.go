package discover_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
)

// An impostor alone counts as no kubelet, and beside kubelet it does not hide it: neither as a second one, nor by its
// unreadable files.
func TestImpostorsNeitherMisleadNorBlind(t *testing.T) {
	for name, impostor := range impostors() {
		t.Run(name, func(t *testing.T) {
			root := machine(t)
			impostor.write(t, root, 700)
			find := finder(root)
			if p, err := find(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("alone: process %d, %v", p.PID, err)
			}
			impostor.write(t, root, 701)
			proc{}.write(t, root, 900)
			if p, err := find(); err != nil || p.PID != 900 {
				t.Errorf("beside kubelet: process %d, %v", p.PID, err)
			}
			d, err := discover.Discover(host.Files{Root: root}, host.Paths{})
			if err != nil || !d.KubeletRunning {
				t.Errorf("discovery: %v, %v", d.Notes, err)
			}
		})
	}
}

// The result contains no value that an impostor names.
func TestImpostorsAreNotHeard(t *testing.T) {
	for name, impostor := range impostors() {
		t.Run(name, func(t *testing.T) {
			root := machine(t)
			put(t, root+"/evil/config.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: "+
				"KubeletConfiguration\nport: 666\nstaticPodPath: /evil/static\n")
			impostor.args = []string{"kubelet", "--kubeconfig=/evil/kubeconfig", "--root-dir=/evil/root",
				"--config=/evil/config.yaml",
				"--container-runtime-endpoint=/evil/cri.sock", "--hostname-override=evil"}
			impostor.write(t, root, 700)
			impostor.comm, impostor.args = "containerd", []string{"containerd", "--config=/evil/containerd.toml",
				"--root=/evil/c", "--state=/evil/s"}
			impostor.write(t, root, 701)
			impostor.comm, impostor.args = "k3s-server", []string{"k3s", "server"}
			impostor.write(t, root, 702)
			d, err := discover.Discover(host.Files{Root: root}, host.Paths{})
			if err != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprintf("%+v", d); strings.Contains(text, "evil") || strings.Contains(text, "666") ||
				d.KubeletRunning || d.KubeconfigNamed {
				t.Errorf("found %s", text)
			}
		})
	}
}

// Only root can start a doubtful process: "no kubelet runs" would be a guess. Beside kubelet it does not count.
func TestDoubtfulKubelets(t *testing.T) {
	for name, test := range doubtful() {
		t.Run(name, func(t *testing.T) {
			root := machine(t)
			if test.make != nil {
				test.make(t, root)
			}
			test.write(t, root, 700)
			if p, err := finder(root)(); !errors.Is(err, discover.ErrUnsureKubelet) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("alone: process %d, %v", p.PID, err)
			}
			d, err := discover.Discover(host.Files{Root: root}, host.Paths{})
			if err != nil || d.KubeletRunning || !strings.Contains(strings.Join(d.Notes, "\n"), "process 700") {
				t.Errorf("discovery: %+v, %v", d, err)
			}
			proc{}.write(t, root, 900)
			if p, err := finder(root)(); err != nil || p.PID != 900 {
				t.Errorf("beside kubelet: process %d, %v", p.PID, err)
			}
		})
	}
}

func TestKubeletElsewhere(t *testing.T) {
	elsewhere := func(p *host.Paths) { p.KubeletElsewhere = true }
	for name, p := range map[string]proc{
		"in a mount namespace": {mnt: "mnt:[2]"},
		"in a session":         {cgroup: "0::/user.slice/user-0.slice/session-1.scope"},
		"in Docker":            impostors()["in Docker"],
		"in Docker by systemd": {mnt: "mnt:[2]", cgroup: "0::/system.slice/docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope"},
		"in containerd":        {mnt: "mnt:[2]", cgroup: "0::/system/kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			root := machine(t)
			p.write(t, root, 700)
			if got, err := finder(root, elsewhere)(); err != nil || got.PID != 700 {
				t.Errorf("process %d, %v", got.PID, err)
			}
		})
	}
	all := impostors()
	for _, settled := range []string{"in a session", "in a user's manager", "in Docker", "in LXC", "in nspawn",
		"in a namespace of containerd"} {
		delete(all, settled)
	}
	for name, p := range all {
		t.Run(name, func(t *testing.T) {
			root := machine(t)
			p.write(t, root, 700)
			if got, err := finder(root, elsewhere)(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("process %d, %v", got.PID, err)
			}
		})
	}
}

// On a machine that is a container itself, all cgroup paths begin with the container's name.
func TestMachineInAContainer(t *testing.T) {
	const container = "/docker/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	root := t.TempDir()
	proc{comm: "systemd", cgroup: "0::" + container + "/init.scope"}.write(t, root, 1)
	put(t, root+"/usr/bin/kubelet", "ELF")
	proc{cgroup: "0::" + container + "/kubepods/x"}.write(t, root, 700)
	proc{cgroup: "0::" + container + "/system.slice/kubelet.service"}.write(t, root, 900)
	if p, err := finder(root)(); err != nil || p.PID != 900 {
		t.Errorf("process %d, %v", p.PID, err)
	}
}

// A kubelet whose program was replaced by an upgrade keeps running.
func TestKubeletIsUpgraded(t *testing.T) {
	root := machine(t)
	proc{exe: "/usr/bin/kubelet (deleted)"}.write(t, root, 900)
	if p, err := finder(root)(); err != nil || p.PID != 900 {
		t.Errorf("process %d, %v", p.PID, err)
	}
}

// Reading another user's process memory may hang: its arguments are not read.
func TestArgumentsOfStrangersAreNotRead(t *testing.T) {
	root := machine(t)
	proc{uid: "1000\t1000\t1000\t1000"}.write(t, root, 700)
	name := filepath.Join(root, "proc/700/cmdline")
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil { // opening it would block forever
		t.Fatal(err)
	}
	if _, err := finder(root)(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	h := &host.Host{Files: host.Files{Root: root}, Paths: host.Paths{InitPID: 1}}
	if found, err := discover.Impostors(t.Context(), h); err != nil || len(found) != 1 || found[0].PID != 700 ||
		found[0].User != 1000 {
		t.Errorf("%+v, %v", found, err)
	}
}

// A PID reused while its files are read does not belong to the checked process.
func TestNumberIsReused(t *testing.T) {
	root := machine(t)
	proc{}.write(t, root, 700)
	name := filepath.Join(root, "proc/700/cmdline")
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { // its arguments are read between the two checks of its identity
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err == nil {
			err = os.WriteFile(root+"/proc/700/stat",
				[]byte("700 (kubelet) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"), 0o644)
			_, writeErr := file.WriteString("kubelet\x00--root-dir=/evil\x00")
			err = errors.Join(err, writeErr, file.Close())
		}
		done <- err
	}()
	p, err := finder(root)()
	if writeErr := <-done; writeErr != nil {
		t.Fatal(writeErr)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("process %d, %v", p.PID, err)
	}
}

// A name in the kernel's list is no proof for checks of other programs either: only root's process is kube-proxy or
// journald.
func TestProgramIsRoots(t *testing.T) {
	root := machine(t)
	proc{comm: "kube-proxy", uid: "1000\t1000\t1000\t1000"}.write(t, root, 700)
	h := &host.Host{Files: host.Files{Root: root}, Paths: host.Paths{InitPID: 1}}
	if p, err := (&discover.Program{Comm: "kube-proxy"}).Find(h); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("process %d, %v", p.PID, err)
	}
	proc{comm: "kube-proxy", cgroup: "0::/kubepods/x"}.write(t, root, 900)
	if p, err := (&discover.Program{Comm: "kube-proxy"}).Find(h); err != nil || p.PID != 900 {
		t.Errorf("process %d, %v", p.PID, err)
	}
	// One that may be a tenant's only counts until the real one runs.
	program := &discover.Program{Comm: "kube-proxy", Doubtful: func(p host.Process) bool { return p.PID == 900 }}
	if p, err := program.Find(h); err != nil || p.PID != 900 {
		t.Errorf("process %d, %v", p.PID, err)
	}
	proc{comm: "kube-proxy", cgroup: "0::/kubepods/y"}.write(t, root, 950)
	if p, err := program.Find(h); err != nil || p.PID != 950 {
		t.Errorf("process %d, %v", p.PID, err)
	}
}
