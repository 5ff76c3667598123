package rpm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// machine is a booted Debian.
type machine struct {
	t       *testing.T
	root    string // path on this machine
	nspawn  *exec.Cmd
	ended   chan struct{}
	cgroups []string // created for it, one in each hierarchy that systemd uses
	console string   // file with its output
}

// boot boots a fresh Debian with the older package in /root, and ends it with the test.
func boot(t *testing.T) *machine {
	t.Helper()
	needMachine(t)
	p := prepared(t)
	m := &machine{t: t, root: overlay(t, p.debian), console: filepath.Join(t.TempDir(), "console")}
	for _, version := range []string{older, newer} {
		copyFile(t, p.file(version), filepath.Join(m.root, inMachine(version)))
	}
	m.makeCgroups()
	t.Cleanup(m.remove)
	m.start()
	m.settle()
	return m
}

// overlay mounts a copy-on-write copy of a root filesystem until the test ends.
func overlay(t *testing.T, lower string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(dir, "root")
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, dir, dir)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		t.Fatalf("mount overlay: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Errorf("unmount %s: %v", root, err)
		}
	})
	return root
}

// name is the test's, without slashes.
func (m *machine) name() string { return strings.ReplaceAll(m.t.Name(), "/", "-") }

// makeCgroups creates the cgroups that contain the whole machine, so that all of it can be found and removed.
func (m *machine) makeCgroups() {
	m.t.Helper()
	for _, hierarchy := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(hierarchy, "cgroup.procs")); err != nil {
			continue
		}
		cgroup := filepath.Join(hierarchy, fmt.Sprintf("nodeagent-rpm-%d-%s", os.Getpid(), m.name()))
		if err := os.Mkdir(cgroup, 0o755); err != nil {
			m.t.Fatal(err)
		}
		m.cgroups = append(m.cgroups, cgroup)
	}
}

// start starts systemd-nspawn in the machine's cgroups. There is no systemd on the outside: with --keep-unit and
// --register=no it does not ask for one.
func (m *machine) start() {
	m.t.Helper()
	enter := ""
	for _, cgroup := range m.cgroups {
		enter += "echo $$ >" + cgroup + "/cgroup.procs && "
	}
	name := "nodeagent-" + strings.ToLower(m.name())
	m.nspawn = exec.Command("/bin/sh", "-c", enter+`exec systemd-nspawn "$@"`, "sh", //nolint:gosec // of this test
		"--boot", "--quiet", "--directory="+m.root, "--machine="+name, "--register=no", "--keep-unit",
		"--private-network", "--link-journal=no",
		"--console=pipe", "--kill-signal=SIGRTMIN+3")
	console, err := os.OpenFile(m.console, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	defer console.Close()
	m.nspawn.Stdout, m.nspawn.Stderr = console, console
	m.nspawn.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := m.nspawn.Start(); err != nil {
		m.t.Fatal(err)
	}
	nspawn, ended := m.nspawn, make(chan struct{})
	m.ended = ended
	go func() { _ = nspawn.Wait(); close(ended) }()
}

// remove ends the machine, gracefully if it still can, and removes all traces of it.
func (m *machine) remove() {
	if m.t.Failed() {
		m.t.Logf("journal of the agent:\n%s",
			tail(m.try("journalctl", "--no-pager", "-u", "nodeagent", "-o", "short-precise").stdout))
	}
	if m.ended != nil {
		_ = m.nspawn.Process.Signal(syscall.SIGTERM) // nspawn passes it on as a request to halt
		select {
		case <-m.ended:
		case <-time.After(patience):
			m.t.Errorf("the machine did not halt")
		}
	}
	for _, cgroup := range m.cgroups {
		m.emptyCgroup(cgroup)
	}
}

// emptyCgroup kills the remaining processes of a cgroup and removes it with all cgroups below it.
func (m *machine) emptyCgroup(cgroup string) {
	var dirs []string
	_ = filepath.WalkDir(cgroup, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs) // children first
	m.eventually("remove "+cgroup, func() error {
		for _, dir := range dirs {
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for pid := range strings.FieldsSeq(string(text)) {
				if n, err := strconv.Atoi(pid); err == nil {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			}
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// init returns the machine's PID 1. It changes with a reboot.
func (m *machine) init() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.nspawn.Process.Pid, m.nspawn.Process.Pid))
	if err != nil {
		return 0, err
	}
	children := strings.Fields(string(text))
	if len(children) == 0 {
		return 0, errors.New("nothing runs in the machine")
	}
	return strconv.Atoi(children[0])
}

// outside returns the PID on this machine of the machine's process whose command line starts with command.
func (m *machine) outside(command ...string) (pid int) {
	m.t.Helper()
	begin := strings.Join(command, "\x00") + "\x00"
	m.eventually(fmt.Sprintf("%v in the machine", command), func() error {
		root, err := m.init()
		if err != nil {
			return err
		}
		want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", root))
		if err != nil {
			return err
		}
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		for _, file := range files {
			text, _ := os.ReadFile(file) // gone: not it
			namespace, _ := os.Readlink(filepath.Join(filepath.Dir(file), "ns/pid"))
			if strings.HasPrefix(string(text), begin) && namespace == want {
				pid, err = strconv.Atoi(filepath.Base(filepath.Dir(file)))
				return err
			}
		}
		return errors.New("not there")
	})
	return pid
}

// settle waits until the machine has booted.
func (m *machine) settle() {
	m.t.Helper()
	m.eventually("the machine to boot", func() error {
		if out := m.try("systemctl", "is-system-running"); strings.TrimSpace(out.stdout) != "running" {
			console, _ := os.ReadFile(m.console)
			return fmt.Errorf("%s; console: %s", out, tail(string(console)))
		}
		return nil
	})
}

// output is the result of a command.
type output struct {
	code           int
	stdout, stderr string
}

func (o output) String() string {
	return fmt.Sprintf("exit code %d\n%s%s", o.code, o.stdout, o.stderr)
}

// try runs a command in the machine.
func (m *machine) try(arguments ...string) output {
	pid, err := m.init()
	if err != nil {
		return output{code: -1, stderr: err.Error()}
	}
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(pid), //nolint:gosec // of this test
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wdns=/", "--", "env", "-i",
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"}, arguments...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	code := cmd.ProcessState.ExitCode()
	if err != nil && cmd.ProcessState == nil {
		return output{code: -1, stderr: err.Error()}
	}
	return output{code, stdout.String(), stderr.String()}
}

// run runs a command that must succeed and returns its output.
func (m *machine) run(arguments ...string) string {
	m.t.Helper()
	out := m.try(arguments...)
	if out.code != 0 {
		m.t.Fatalf("%s: %s", strings.Join(arguments, " "), out)
	}
	return out.stdout
}

// fails runs a command that must end with the code, and returns its result.
func (m *machine) fails(code int, arguments ...string) output {
	m.t.Helper()
	out := m.try(arguments...)
	if out.code != code {
		m.t.Fatalf("%s: want exit code %d, got %s", strings.Join(arguments, " "), code, out)
	}
	return out
}

// write writes a file in the machine atomically, like programs that deploy configurations.
func (m *machine) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.root, name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func (m *machine) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(m.root, name))
	return err == nil
}

// property returns a property of the service.
func (m *machine) property(name string) string {
	m.t.Helper()
	return strings.TrimSpace(m.run("systemctl", "show", "--value", "-p", name, "nodeagent.service"))
}

// patience bounds each wait: ten times as long as the slowest one takes.
const patience = 5 * time.Minute

// eventually waits until try returns nil. It tries often at first and three times a second later: most tries start an
// agent's command in the machine, which costs more than what they wait for.
func (m *machine) eventually(what string, try func() error) {
	m.t.Helper()
	end := time.Now().Add(patience)
	const first, last = 20 * time.Millisecond, 300 * time.Millisecond
	for pause := first; ; pause = min(pause*5/4, last) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		<-time.After(pause)
	}
}

// agentStatus is the part of "nodeagent status -o json" that the tests read.
type agentStatus struct {
	Version   string
	PID       int
	Readiness struct {
		Ready bool
		Why   []string
	}
	Findings []struct {
		Check, Reason, ID, Severity, Message string

		Subject struct{ Kind, Name string }
		Raised  struct{ Wall time.Time }
	}
	Checks  []struct{ Check, Status string }
	Release struct {
		Mode string
		Last []string
	}
	Repair struct {
		Steps []struct{ Action, Does, NotActed string }
		Last  []string
	}
}

// askStatus reads the status of the agent, which may have findings or not run.
func (m *machine) askStatus() (agentStatus, error) {
	var s agentStatus
	out := m.try("nodeagent", "status", "-o", "json")
	if err := json.Unmarshal([]byte(out.stdout), &s); err != nil {
		return s, fmt.Errorf("%w: %s", err, out)
	}
	return s, nil
}

func (m *machine) status() agentStatus {
	m.t.Helper()
	s, err := m.askStatus()
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// install installs the older package and waits until the agent is ready.
func (m *machine) install() {
	m.t.Helper()
	m.run("rpm", "-i", "--nodeps", inMachine(older))
	m.awaitReady()
}

// awaitReady waits until all checks of an agent have run.
func (m *machine) awaitReady() {
	m.t.Helper()
	m.run("nodeagent", "ready", "--wait="+patience.String())
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func tail(text string) string {
	const most = 4000
	return text[max(0, len(text)-most):]
}

// inMachine is the path of a version's package in every machine.
func inMachine(version string) string { return "/root/nodeagent-" + version + "-1.x86_64.rpm" }
