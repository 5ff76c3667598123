package discover_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// Examples of kubelets' mount tables: the host's (Debian 12, cgroup v2), that of a kind node with its own cgroup
// namespace (kind 0.20 on Docker 24), and one that was given the host's.
const (
	hostMounts = `25 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
`
	kindMounts = `600 500 0:55 / / rw,relatime - overlay overlay rw
601 600 0:26 /system.slice/docker-abab.scope /sys/fs/cgroup rw - cgroup2 cgroup rw
602 600 254:1 /var/lib/docker/volumes/v/_data /var rw - ext4 /dev/vda1 rw
`
	hostCgroupMounts = `600 500 0:55 / / rw,relatime - overlay overlay rw
601 600 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw
602 600 254:1 /var/lib/docker/volumes/v/_data /var rw - ext4 /dev/vda1 rw
`
	podMounts = `700 500 0:60 / / rw,relatime - overlay overlay rw
701 700 0:26 /kubepods/burstable/pod0f6d4d9c-3f4e-4c3b-9a53-1d2c3b4a5e6f/abab /sys/fs/cgroup ro - cgroup2 cgroup rw
`
	volumeMounts = podMounts + `702 700 254:1 /var/lib/kubelet /var/lib/kubelet rw,relatime - ext4 /dev/vda1 rw
`
	v1Mounts = `600 500 0:55 / / rw,relatime - overlay overlay rw
601 600 0:31 /docker/abab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
602 600 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
`
)

// program is a process in a fake /proc.
type program struct {
	comm, args string
	uids       string // "0 0 0 0" unless set
	parent     string // "1" unless set
	state      string // "S" unless set
	threads    int    // 1 unless set
	mounts     string // hostMounts unless set
	namespace  string // of mounts; the agent's unless set
	files      map[string]string
}

func (p program) start(t *testing.T, h *host.Host, pid int) {
	t.Helper()
	or := func(value, otherwise string) string {
		if value == "" {
			return otherwise
		}
		return value
	}
	dir := fmt.Sprintf("proc/%d/", pid)
	hosttest.WriteHostFile(t, h, dir+"stat", fmt.Sprintf("%d (%s) %s %s 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 %d 0 77 0 0\n",
		pid, p.comm, or(p.state, "S"), or(p.parent, "1"), max(p.threads, 1)))
	hosttest.WriteHostFile(t, h, dir+"cmdline", strings.ReplaceAll(or(p.args, p.comm), " ", "\x00")+"\x00")
	hosttest.WriteHostFile(t, h, dir+"status", "Name:\tx\nUid:\t"+or(p.uids, "0 0 0 0")+"\nNSpid:\t7\n")
	hosttest.WriteHostFile(t, h, dir+"mountinfo", or(p.mounts, hostMounts))
	hosttest.WriteHostFile(t, h, dir+"ns/x", "")
	if err := os.Symlink(or(p.namespace, "mnt:[1]"), filepath.Join(h.Files.Root, dir, "ns/mnt")); err != nil {
		t.Fatal(err)
	}
	for name, content := range p.files {
		hosttest.WriteHostFile(t, h, name, content)
	}
}

func TestOtherKubelets(t *testing.T) {
	const cgroups, dirs = "cgroups in /kubepods", "directories in /var/lib/kubelet"
	for name, test := range map[string]struct {
		process program
		want    string // "" is none, "apart" one without shared directories
	}{
		"ours alone":   {program{comm: "sshd"}, ""},
		"a second one": {program{comm: "kubelet", args: "/usr/bin/kubelet"}, cgroups},
		"of kind":      {program{comm: "kubelet", mounts: kindMounts, namespace: "mnt:[2]"}, "apart"},
		"with the host's cgroups": {program{comm: "kubelet", mounts: hostCgroupMounts, namespace: "mnt:[2]"},
			cgroups},
		"and a root of its own": {program{comm: "kubelet", args: "kubelet --cgroup-root=/kubelet",
			mounts: hostCgroupMounts}, "apart"},
		"and a root that is ours": {program{comm: "kubelet", args: "kubelet --cgroup-root /",
			mounts: hostCgroupMounts}, cgroups},
		"cgroup v1, one controller": {program{comm: "kubelet", mounts: v1Mounts, namespace: "mnt:[2]"}, cgroups},
		"with a version":            {program{comm: "kubelet-1.36.3"}, cgroups},
		"hyperkube":                 {program{comm: "hyperkube", args: "/hyperkube kubelet --v=2"}, cgroups},
		"another part of hyperkube": {program{comm: "hyperkube", args: "/hyperkube proxy"}, ""},
		"K3s":                       {program{comm: "k3s-server", args: "/usr/local/bin/k3s server"}, cgroups},
		"an agent of k3d":           {program{comm: "k3s-agent", mounts: kindMounts, namespace: "mnt:[2]"}, "apart"},
		"MicroK8s":                  {program{comm: "kubelite", args: "/snap/microk8s/1/kubelite"}, cgroups},
		"behind a loader": {program{comm: "ld-linux-x86-64",
			args: "/lib64/ld-linux-x86-64.so.2 /opt/kubelet"}, cgroups},
		"something behind a loader": {program{comm: "ld-linux-x86-64", args: "/lib64/ld-linux-x86-64.so.2 /opt/java"},
			""},
		"k0s, whose kubelet is ours": {program{comm: "k0s", args: "/usr/local/bin/k0s worker"}, ""},
		"a user's":                   {program{comm: "kubelet", uids: "1000 1000 1000 1000"}, ""},
		"of root by its file":        {program{comm: "kubelet", uids: "1000 0 0 0"}, cgroups},
		"in a pod":                   {program{comm: "kubelet", mounts: podMounts, namespace: "mnt:[3]"}, "apart"},
		"in a pod with our volumes":  {program{comm: "kubelet", mounts: volumeMounts, namespace: "mnt:[3]"}, dirs},
		"asked for its version":      {program{comm: "kubelet", args: "kubelet --version"}, ""},
		"dead":                       {program{comm: "kubelet", state: "Z"}, ""},
		"ending, with threads left":  {program{comm: "kubelet", state: "Z", threads: 9, mounts: "nonsense\n"}, ""},
		"a child of ours":            {program{comm: "kubelet", parent: "900"}, ""},
		"a similar name":             {program{comm: "kubeletx"}, ""},
		"no mount table":             {program{comm: "kubelet", mounts: "nonsense\n"}, "cannot be read"},
		"configured": {program{comm: "kubelet", args: "kubelet --config=/etc/k.yaml --root-dir=/var/lib/k2",
			files: map[string]string{"etc/k.yaml": "kind: KubeletConfiguration\napiVersion: " +
				"kubelet.config.k8s.io/v1beta1\ncgroupRoot: /lab\n"}}, "apart"},
		"configured elsewhere": {program{comm: "kubelet", args: "kubelet --config=/etc/k.yaml --root-dir=/var/lib/k2",
			namespace: "mnt:[2]",
			files: map[string]string{"etc/k.yaml": "kind: KubeletConfiguration\napiVersion: " +
				"kubelet.config.k8s.io/v1beta1\ncgroupRoot: /lab\n"}}, cgroups},
		"configured badly": {program{comm: "kubelet", args: "kubelet --config=/etc/k.yaml --root-dir=/var/lib/k2",
			files: map[string]string{"etc/k.yaml": "cgroupRoot: [\n"}}, "its configuration"},
		"configured by nothing": {program{comm: "kubelet",
			args: "kubelet --config=/etc/none.yaml --root-dir=/var/lib/k2"}, "its configuration"},
		"configured by a folder": {program{comm: "kubelet", args: "kubelet --config=/etc/pipe/ --root-dir=/var/lib/k2",
			files: map[string]string{"etc/pipe/x": ""}}, "its configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			program{comm: "init"}.start(t, h, 1)
			program{comm: "nodeagent"}.start(t, h, 950)
			program{comm: "kubelet"}.start(t, h, 900)
			if err := os.Symlink("950", filepath.Join(h.Files.Root, "proc/self")); err != nil {
				t.Fatal(err)
			}
			test.process.start(t, h, 1000)
			others, err := discover.OtherKubelets(t.Context(), h, h.Kubelet.Process)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, other := range others {
				got = append(got, other.Shares)
				if other.PID != 1000 {
					t.Errorf("%s", other)
				}
			}
			switch {
			case test.want == "" && len(got) == 0 || test.want == "apart" && cmp.Equal(got, []string{""}):
			case test.want != "" && test.want != "apart" && len(got) == 1 && strings.Contains(got[0], test.want):
			default:
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// If our own kubelet is not found, or was replaced, each existing one is another.
func TestOtherKubeletsWithoutOurs(t *testing.T) {
	h := hosttest.Host(t)
	program{comm: "init"}.start(t, h, 1)
	program{comm: "kubelet"}.start(t, h, 900)
	for name, ours := range map[string]func() (host.Process, error){
		"not configured": nil,
		"not found":      func() (host.Process, error) { return host.Process{}, fs.ErrNotExist },
		"a new one":      func() (host.Process, error) { return host.Process{PID: 901}, nil },
	} {
		if others, err := discover.OtherKubelets(t.Context(), h, ours); err != nil || len(others) != 1 {
			t.Errorf("%s: %v, %v", name, others, err)
		}
	}
	ended := func() (host.Process, error) { // ours ends in the middle, and another takes its place
		return host.Process{PID: 901}, os.RemoveAll(filepath.Join(h.Files.Root, "proc/900"))
	}
	if others, err := discover.OtherKubelets(t.Context(), h, ended); err != nil || len(others) != 0 {
		t.Errorf("ended: %v, %v", others, err)
	}
}

// A process with an unknown owner is an error, not "none".
func TestOtherKubeletOfUnknownOwner(t *testing.T) {
	h := hosttest.Host(t)
	program{comm: "init"}.start(t, h, 1)
	program{comm: "kubelet"}.start(t, h, 1000)
	hosttest.WriteHostFile(t, h, "proc/1000/status", "Name:\tkubelet\n")
	if others, err := discover.OtherKubelets(t.Context(), h, h.Kubelet.Process); err == nil {
		t.Errorf("%v", others)
	}
	if _, err := discover.OtherKubelets(t.Context(), (&host.Host{Files: host.Files{Root: t.TempDir()}}),
		nil); err == nil {
		t.Error("no /proc, no error")
	}
}

// A user can make a reader of a process's arguments block forever, and a kubelet's configuration may be any file. Here
// each is a pipe without a writer.
func TestOtherKubeletsWaitForNobody(t *testing.T) {
	for name, p := range map[string]program{
		"proc/1000/cmdline": {comm: "kubelet", uids: "1000 1000 1000 1000"},
		"etc/k.yaml": {comm: "kubelet", args: "kubelet --config=/etc/k.yaml",
			files: map[string]string{"etc/k.yaml": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			program{comm: "init"}.start(t, h, 1)
			p.start(t, h, 1000)
			pipe := filepath.Join(h.Files.Root, name)
			self := os.Symlink("1000", filepath.Join(h.Files.Root, "proc/self"))
			if err := errors.Join(self, os.Remove(pipe), unix.Mkfifo(pipe, 0o600)); err != nil {
				t.Fatal(err)
			}
			found := make(chan error, 1)
			go func() {
				_, err := discover.OtherKubelets(t.Context(), h, h.Kubelet.Process)
				found <- err
			}()
			select {
			case err := <-found:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("it waits")
				if file, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil { // lets it go on
					file.Close()
				}
				<-found
			}
		})
	}
}
