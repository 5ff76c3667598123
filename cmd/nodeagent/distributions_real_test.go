package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/test/need"
)

// Environment variables that make the test's program a node of namespaces, and a daemon on it that serves healthz.
const (
	asNode   = "NODEAGENT_TEST_NODE"
	asDaemon = "NODEAGENT_TEST_DAEMON"
)

const healthzPort = "10248"

// node is a node of one distribution, made of its row in the table.
type node struct {
	Name    string
	Files   map[string]string
	Dirs    []string
	Program []string // that kubelet is, or is part of: path and arguments
	Alive   bool

	Full    string // a directory on a full filesystem
	Stacked int    // mounts that lie on /data/stack, each over the one before, mounted before that
	Checks  []string

	advice, kubeconfig, root string // expected
}

// nodeOf lays out a distribution, with its data or kubelet's root directory in another place if it is not empty.
func nodeOf(d distro.Distribution, data, root string) node {
	at := func(text string) string { return d.Expand(text, data) }
	n := node{Name: d.Name, Files: map[string]string{}, Checks: []string{"kubelet-health", "kubelet-config"},
		root: at(d.Kubelet.Root), kubeconfig: at(d.Kubelet.Kubeconfig)}
	for _, trace := range d.Traces[:1] {
		n.Files[at(trace)] = "x: y\n"
	}
	if n.kubeconfig != "" {
		n.Files[n.kubeconfig] = "apiVersion: v1\nkind: Config\n"
	}
	if d.ConfigDir != "" {
		n.Dirs = append(n.Dirs, at(d.ConfigDir))
	}
	var flags []string
	for _, flag := range d.Flags {
		flags = append(flags, at(flag))
	}
	if d.Config != "" && d.Launcher != "edgecore" {
		n.Files[at(d.Config)] = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
		flags = append(flags, "--config="+at(d.Config))
	}
	if root != "" {
		n.root, flags = root, append(flags, "--root-dir="+root)
	}
	if d.Args != "" {
		flags = append(flags, "--root-dir="+n.root, "--kubeconfig="+n.kubeconfig)
		n.Files[at(d.Args)] = strings.Join(flags, "\n") + "\n"
	}
	n.Dirs = append(n.Dirs, n.root+"/pods/5da3387d-ad1c-11ea-a025-525400767782")
	start := append([]string{"/usr/bin/kubelet"}, flags...)
	switch {
	case d.Launcher != "":
		start = []string{"/usr/local/bin/" + d.Launcher, map[string]string{"k0s": "worker"}[d.ID]}
		if start[1] == "" {
			start[1] = "agent"
		}
		if data != "" {
			start = append(start, d.DataFlag[0]+"="+data)
		}
	case d.Args != "":
		start = []string{"/usr/bin/snap", "run", d.ID}
	}
	n.Program = append([]string{"/usr/bin/kubelet"}, flags...)
	if d.Program != "" {
		n.Program[0] = strings.ReplaceAll(at(d.Program), "*", "kubelet")
	}
	if d.Embeds() {
		n.Program = []string{path.Join(path.Dir(n.Program[0]), d.Programs[0])}
		n.Program = append(n.Program, start[1:]...)
		if d.ArgsFlag != "" {
			n.Program = append(n.Program[:1], d.ArgsFlag+"="+at(d.Args))
		}
	}
	if len(d.Units) > 0 {
		unit := strings.TrimSuffix(d.Units[0], "-*")
		n.advice = "systemctl status " + unit
		n.Files["/etc/systemd/system/"+unit+".service"] = "[Service]\nExecStart=" + strings.Join(start, " ") + "\n"
	} else {
		n.advice = d.Commands.Start
	}
	return n
}

// TestDistributions: on a node of each distribution, in namespaces of its own, `check` finds a living kubelet healthy
// and reports a dead one as fatal, with the distribution's unit; config show has the distribution's paths.
func TestDistributions(t *testing.T) {
	need.Root(t, "creates namespaces")
	for _, d := range distro.All() {
		t.Run(d.ID, func(t *testing.T) {
			t.Run("usual", func(t *testing.T) { nodeOf(d, "", "").compare(t, d) })
			if len(d.DataFlag) > 0 {
				t.Run("data elsewhere", func(t *testing.T) { nodeOf(d, "/data/elsewhere", "").compare(t, d) })
			} else if !d.Embeds() && d.Commands == nil {
				t.Run("root elsewhere", func(t *testing.T) { nodeOf(d, "", "/data/kubelet").compare(t, d) })
			}
		})
	}
}

// TestStackedMounts: mounts on one directory are counted, and a full filesystem mounted after them is found: no check is
// blind, even if the kernel takes seconds to list them.
func TestStackedMounts(t *testing.T) {
	need.Root(t, "mounts filesystems")
	kubeadm, _ := distro.ByID("kubeadm")
	for _, stacked := range []int{2000, 16000} {
		t.Run(fmt.Sprint(stacked), func(t *testing.T) {
			n := nodeOf(kubeadm, "", "")
			n.Stacked, n.Full, n.Checks = stacked, "/var/log", []string{"kernel-limits", "disk-space", "filesystem-readonly", "hung-mounts"}
			var out string
			for range 5 { // a check has 10 s; a node of so many mounts must fit in them, and a machine may be busy
				if out = n.run(t); !strings.Contains(out, "no answer within") {
					break
				}
			}
			for _, text := range []string{fmt.Sprintf("MountsStacked: %d mounts lie on %s", stacked, stackedOn), "DiskFull: /var/log ", "exit 1"} {
				if !strings.Contains(out, text) {
					t.Errorf("no %q in %s", text, out[max(0, len(out)-2000):])
				}
			}
			if _, blind, ok := strings.Cut(out, "could not tell:"); ok {
				t.Errorf("a check is blind: %s", blind)
			}
		})
	}
}

const stackedOn = "/data/stack"

func (n node) compare(t *testing.T, d distro.Distribution) {
	t.Helper()
	for _, n.Alive = range []bool{true, false} {
		out := n.run(t)
		wanted := []string{"kubeletRoot: " + n.root + " "}
		if n.kubeconfig != "" {
			wanted = append(wanted, "kubeconfig: "+n.kubeconfig+" ")
		}
		var unwanted []string
		if n.Alive {
			wanted, unwanted = append(wanted, "exit 0", "kubelet: process "), []string{"FATAL", "KubeletNotRunning"}
			if d.Embeds() {
				wanted = append(wanted, "("+d.Name+")")
			}
		} else {
			unwanted = []string{"nothing is wrong"}
			wanted = append(wanted, "FATAL", "KubeletNotRunning", n.advice, "exit 1",
				"kubelet should run here: "+d.Name+" ")
		}
		for _, text := range wanted {
			if !strings.Contains(out, text) {
				t.Errorf("%s, alive %v: no %q in %s", d.Name, n.Alive, text, out)
			}
		}
		for _, text := range unwanted {
			if strings.Contains(out, text) {
				t.Errorf("%s, alive %v: %q in %s", d.Name, n.Alive, text, out)
			}
		}
	}
}

// run returns the output of the agent's commands on the node, with single blanks.
func (n node) run(t *testing.T) string {
	t.Helper()
	data, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, t.TempDir())
	cmd.Env = append(os.Environ(), asNode+"="+string(data))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNS |
		syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text := regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAllString(string(out), "")
	return strings.Join(strings.Fields(text), " ") + " "
}

// beNode is the first process of the node: it makes the root below dir, starts the daemon, and runs the agent.
func beNode(text, dir string) error {
	var n node
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(lo), syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755")); err != nil {
		return err
	}
	const agent = "/opt/agent"
	for _, name := range []string{agent, n.Program[0]} {
		if err := errors.Join(putFile(dir+name, ""), syscall.Mount(program, dir+name, "", syscall.MS_BIND, "")); err != nil {
			return err
		}
	}
	for _, name := range append(n.Dirs, "/proc", "/run", "/tmp", "/sys", "/dev", "/old") {
		err = errors.Join(err, os.MkdirAll(dir+name, 0o755))
	}
	for name, text := range n.Files {
		err = errors.Join(err, putFile(dir+name, text))
	}
	if err := errors.Join(err, syscall.Mount("proc", dir+"/proc", "proc", 0, ""),
		syscall.Mount("/dev", dir+"/dev", "", syscall.MS_BIND, ""),
		syscall.Mount("/sys", dir+"/sys", "", syscall.MS_BIND|syscall.MS_REC, ""), syscall.PivotRoot(dir, dir+"/old"),
		os.Chdir("/"), syscall.Unmount("/old", syscall.MNT_DETACH)); err != nil {
		return err
	}
	if err := n.mount(); err != nil {
		return err
	}
	if n.Alive {
		if err := n.start(); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"config", "show"}, append([]string{"check"}, n.Checks...)} {
		cmd := exec.Command(agent, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = []string{asProgram + "=1"}, os.Stdout, os.Stderr
		if err := cmd.Run(); cmd.ProcessState == nil {
			return err
		}
		fmt.Println("\nexit", cmd.ProcessState.ExitCode())
	}
	return nil
}

// mount makes the stack of mounts: 2,000, by turns filesystems of their own and bind mounts, and then twice as many until
// there are enough. The full filesystem comes last.
func (n node) mount() error {
	bottom := -1
	for i := range min(n.Stacked, 2000) {
		err := os.MkdirAll(stackedOn, 0o755)
		if i%2 == 0 {
			err = errors.Join(err, syscall.Mount("tmpfs", stackedOn, "tmpfs", 0, ""))
		} else {
			err = errors.Join(err, syscall.Mount(stackedOn, stackedOn, "", syscall.MS_BIND, ""))
		}
		if err == nil && i == 0 {
			bottom, err = unix.Open(stackedOn, unix.O_PATH|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return err
		}
	}
	for made := 2000; made < n.Stacked; made *= 2 {
		all, err := unix.OpenTree(bottom, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE|unix.O_CLOEXEC)
		if err != nil {
			return err
		}
		err = unix.MoveMount(all, "", unix.AT_FDCWD, stackedOn, unix.MOVE_MOUNT_F_EMPTY_PATH)
		if err := errors.Join(err, unix.Close(all)); err != nil {
			return err
		}
	}
	if n.Full == "" {
		return nil
	}
	err := errors.Join(os.MkdirAll(n.Full, 0o755), syscall.Mount("tmpfs", n.Full, "tmpfs", 0, "size=1m,mode=755"))
	_ = os.WriteFile(n.Full+"/fill", make([]byte, 2<<20), 0o600) // until it is full
	return err
}

// start runs the daemon until it answers.
func (n node) start() error {
	cmd := exec.Command(n.Program[0], n.Program[1:]...)
	cmd.Env = []string{asDaemon + "=1"}
	if err := cmd.Start(); err != nil {
		return err
	}
	for range 600 {
		if answer, err := http.Get("http://127.0.0.1:" + healthzPort + "/healthz"); err == nil {
			return answer.Body.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the daemon does not answer")
}

// beDaemon is healthy for ever.
func beDaemon() error {
	return http.ListenAndServe("127.0.0.1:"+healthzPort, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "ok")
	}))
}

func putFile(name, text string) error {
	if stat, err := os.Stat(name); err == nil && stat.IsDir() {
		return nil
	}
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644))
}
