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
	"github.com/nodeagent/nodeagent/test/need"
)

// proc is one process of a made-up machine, by default the node's kubelet as root starts it.
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
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
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

// impostors are processes called kubelet that nobody who is not root already needs more than his own rights for.
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

// doubtful are processes called kubelet that only root can make: whether they are the node's cannot be told.
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

// An impostor alone is as if nobody were there, and beside kubelet it does not blind: not by being a second one, and
// not by what cannot be read of it.
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

// What an impostor names is nowhere in what was found.
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

// Only root can make what is doubtful: "no kubelet runs" would be a guess. Beside kubelet it does not count.
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
	delete(all, "in a session")
	delete(all, "in a user's manager")
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

// A machine that is a container itself has its container's name before all of its cgroups.
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

// A kubelet whose program was replaced by an upgrade runs on.
func TestKubeletIsUpgraded(t *testing.T) {
	root := machine(t)
	proc{exe: "/usr/bin/kubelet (deleted)"}.write(t, root, 900)
	if p, err := finder(root)(); err != nil || p.PID != 900 {
		t.Errorf("process %d, %v", p.PID, err)
	}
}

// The memory of a stranger may hang whoever reads it: his arguments are not asked for.
func TestArgumentsOfStrangersAreNotRead(t *testing.T) {
	root := machine(t)
	proc{uid: "1000\t1000\t1000\t1000"}.write(t, root, 700)
	name := filepath.Join(root, "proc/700/cmdline")
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil { // opened it would wait for ever
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

// A number that becomes another process's while its files are read is not the one that was judged.
func TestNumberIsReused(t *testing.T) {
	root := machine(t)
	proc{}.write(t, root, 700)
	name := filepath.Join(root, "proc/700/cmdline")
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { // its arguments are read between the two looks at who it is
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
}

// Files that kubelet and containerd name are read only where they are root's alone, with each folder and link on the
// way.
func TestFilesThatAreNotRootsAreNotRead(t *testing.T) {
	const kubeletYAML = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: " +
		"666\nstaticPodPath: /evil\n"
	for name, spoil := range map[string]func(t *testing.T, root string){
		"file of a user's":          func(t *testing.T, root string) { chown(t, root+"/srv/conf/file") },
		"file that all may write":   func(t *testing.T, root string) { chmod(t, root+"/srv/conf/file", 0o666) },
		"file that a group may":     func(t *testing.T, root string) { chmod(t, root+"/srv/conf/file", 0o660) },
		"folder of a user's":        func(t *testing.T, root string) { chown(t, root+"/srv/conf") },
		"folder that all may write": func(t *testing.T, root string) { chmod(t, root+"/srv/conf", 0o777) },
		"folder with a sticky bit": func(t *testing.T, root string) {
			chmod(t, root+"/srv/conf", 0o777|os.ModeSticky)
		},
		"folder above of a user's": func(t *testing.T, root string) { chown(t, root+"/srv") },
		"link out of a good folder": func(t *testing.T, root string) {
			moveTo(t, root, "/home/u/file", func() { chown(t, root+"/home/u") })
		},
		"link to a user's file": func(t *testing.T, root string) {
			moveTo(t, root, "/opt/file", func() { chown(t, root+"/opt/file") })
		},
		"link of a user's": func(t *testing.T, root string) {
			moveTo(t, root, "/opt/file", func() { lchown(t, root+"/srv/conf/file") })
		},
		"relative link": func(t *testing.T, root string) {
			moveTo(t, root, "../../opt/file", func() { chmod(t, root+"/opt", 0o777) })
		},
		"FIFO in place of a file": fifo,
		"folder in place of a file": func(t *testing.T, root string) {
			replace(t, root, func(n string) error { return os.Mkdir(n, 0o755) })
		},
		"link in a circle to itself": func(t *testing.T, root string) {
			replace(t, root, func(n string) error { return os.Symlink("file", n) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			for what, test := range map[string]struct {
				text string
				proc
			}{
				"kubelet's": {kubeletYAML, proc{args: []string{"kubelet", "--config=/srv/conf/file"}}},
				"drop-in":   {kubeletYAML, proc{args: []string{"kubelet", "--config-dir=/srv/conf"}}},
				"containerd's": {"root = '/evil'\nstate = '/evil'\n",
					proc{comm: "containerd", exe: "/usr/bin/containerd", args: []string{"containerd", "-c",
						"/srv/conf/file"}}},
				"import of containerd's": {"root = '/evil'\nstate = '/evil'\n",
					proc{comm: "containerd", exe: "/usr/bin/containerd", args: []string{"containerd", "-c",
						"/etc/c.toml"}}},
			} {
				t.Run(what, func(t *testing.T) {
					root := machine(t)
					put(t, root+"/etc/c.toml", "imports = ['/srv/conf/file']\n")
					put(t, root+"/srv/conf/file", test.text)
					put(t, root+"/opt/x", "")
					test.write(t, root, 900)
					if what == "drop-in" {
						link(t, "file", root+"/srv/conf/10-a.conf")
					}
					spoil(t, root)
					d, err := discover.Discover(host.Files{Root: root}, host.Paths{})
					if err != nil {
						t.Fatal(err)
					}
					if text := fmt.Sprintf("%+v", d.Paths); strings.Contains(text, "evil") ||
						strings.Contains(text, "666") {
						t.Errorf("found %s", text)
					}
					if !strings.Contains(strings.Join(d.Notes, "\n"), "file") &&
						!strings.Contains(strings.Join(d.Notes, "\n"), "conf") {
						t.Errorf("nothing says why: %q", d.Notes)
					}
				})
			}
		})
	}
}

func lchown(t *testing.T, name string) {
	t.Helper()
	need.Root(t, "gives a link away")
	if err := os.Lchown(name, 65534, 65534); err != nil {
		t.Fatal(err)
	}
}

// moveTo moves the file elsewhere and leaves a link.
func moveTo(t *testing.T, root, target string, then func()) {
	t.Helper()
	to := filepath.Join(root, target)
	if !filepath.IsAbs(target) {
		to = filepath.Join(root, "srv/conf", target)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(root+"/srv/conf/file", to),
		os.Symlink(target, root+"/srv/conf/file")); err != nil {
		t.Fatal(err)
	}
	then()
}

func replace(t *testing.T, root string, with func(name string) error) {
	t.Helper()
	name := root + "/srv/conf/file"
	if err := errors.Join(os.Remove(name), with(name)); err != nil {
		t.Fatal(err)
	}
}

func fifo(t *testing.T, root string) {
	t.Helper()
	replace(t, root, func(name string) error { return syscall.Mkfifo(name, 0o600) })
}
