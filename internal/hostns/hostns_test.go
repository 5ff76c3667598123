package hostns

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/test/need"
)

// roleKey is the environment variable with the role of a process of this test binary; empty: the test itself.
const roleKey = "HOSTNS_TEST_ROLE"

func TestMain(m *testing.M) {
	role, err := os.Getenv(roleKey), error(nil)
	switch {
	case role == "":
		os.Exit(m.Run())
	case os.Args[0] == "nodeagent": // the second start
		err = arrived(os.Args[1:])
	case role == "container":
		err = container(os.Getenv("HOSTNS_TEST_DIR"))
	case role == "agent":
		err = startAgent(os.Getenv("HOSTNS_TEST_DIR"), os.Getenv("HOSTNS_TEST_INIT"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// container makes a filesystem that the host does not see, with the program and a token in kubelet's layout, and starts
// the agent in it.
func container(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("inside", dir, "tmpfs", 0, "size=64m"); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("inside")); err != nil {
		return err
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := executable.Write(filepath.Join(dir, "agent"), program); err != nil {
		return err
	}
	token := filepath.Join(dir, "token")
	if err := os.Mkdir(token, 0o700); err != nil {
		return err
	}
	if err := rotate(token, "first"); err != nil {
		return err
	}
	if err := os.Setenv(roleKey, "agent"); err != nil {
		return err
	}
	return syscall.Exec(filepath.Join(dir, "agent"), []string{"agent"}, os.Environ())
}

// rotate replaces a token as kubelet does: a new directory, and one rename of the link to it.
func rotate(dir, token string) error {
	if err := os.Mkdir(filepath.Join(dir, ".."+token), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, ".."+token, "token"), []byte(token), 0o600); err != nil {
		return err
	}
	if err := os.Symlink(".."+token, filepath.Join(dir, "..data_tmp")); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		return err
	}
	if err := os.Symlink("..data/token", filepath.Join(dir, "token")); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

func startAgent(dir, init string) error {
	pid, err := strconv.Atoi(init)
	if err != nil {
		return err
	}
	return Entry{InitPID: pid, Keep: []string{"", filepath.Join(dir, "token")}, Args: func(kept []string) []string {
		return append(kept, dir)
	}}.Enter()
}

// arrival is the agent's view after its second start.
type arrival struct {
	Namespaces map[string]string
	HostName   string
	Directory  string
	Name       string // of the process
	Inside     bool   // the container's filesystem still exists under its path
	Kept       []string
	Tokens     []string // before and after a rotation
	Inherited  string   // descriptors of a child of the agent
}

func arrived(args []string) error {
	kept, dir := args[1], args[2]
	if err := Entered(args[0], kept); err != nil {
		return err
	}
	a := arrival{Namespaces: map[string]string{}, Kept: args[:1]}
	for _, ns := range namespaces {
		a.Namespaces[ns.file], _ = os.Readlink("/proc/self/ns/" + ns.file)
	}
	a.HostName, _ = os.Hostname()
	a.Directory, _ = os.Getwd()
	name, _ := os.ReadFile("/proc/self/comm")
	a.Name = strings.TrimSpace(string(name))
	_, err := os.Stat(filepath.Join(dir, "agent"))
	a.Inside = err == nil
	first, err := os.ReadFile(filepath.Join(kept, "token"))
	if err != nil {
		return err
	}
	if err := rotate(kept, "second"); err != nil {
		return err
	}
	second, err := os.ReadFile(filepath.Join(kept, "token"))
	if err != nil {
		return err
	}
	a.Tokens = []string{string(first), string(second)}
	list, err := exec.Command("/bin/ls", "-l", "/proc/self/fd").Output()
	if err != nil {
		return err
	}
	if bytes.Contains(list, []byte(filepath.Join(dir, "token"))) || bytes.Contains(list, []byte("-> /token")) {
		a.Inherited = string(list)
	}
	// The agent's own children are the agent's program. This one has no role: it lists the tests and ends.
	child := exec.Command("/proc/self/exe", "-test.list=^TestEnter$")
	child.Env = []string{"GOMAXPROCS=1"}
	if out, err := child.Output(); err != nil || string(out) != "TestEnter\n" {
		return fmt.Errorf("a child that is the program itself: %q, %w", out, err)
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

func needRoot(t *testing.T) {
	t.Helper()
	need.Root(t, "makes namespaces")
}

// start runs the agent in new namespaces; flags are added to the usual ones.
func start(t *testing.T, flags uintptr) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleKey+"=container", "HOSTNS_TEST_DIR="+t.TempDir(), "HOSTNS_TEST_INIT="+
		strconv.Itoa(os.Getpid()))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP | flags,
		Pdeathsig:  syscall.SIGKILL,
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func TestEnter(t *testing.T) {
	needRoot(t)
	stdout, stderr, err := start(t, 0)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	var got arrival
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	want := arrival{
		Namespaces: map[string]string{}, Directory: "/", Name: "nodeagent", Kept: []string{""},
		Tokens: []string{"first", "second"},
	}
	want.HostName, _ = os.Hostname()
	for _, ns := range namespaces {
		want.Namespaces[ns.file], _ = os.Readlink("/proc/self/ns/" + ns.file)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the agent on the host (-want +got):\n%s", diff)
	}
}

func TestEnterRefusesWithoutHostPID(t *testing.T) {
	needRoot(t)
	stdout, stderr, err := start(t, unix.CLONE_NEWPID)
	if err == nil || !strings.Contains(stderr, "set hostPID") {
		t.Errorf("want a refusal that names hostPID, got %v\nstdout: %s\nstderr: %s", err, stdout, stderr)
	}
}

func TestSeesHost(t *testing.T) {
	if err := SeesHost(os.Getppid()); err != nil {
		t.Error(err)
	}
	for name, pid := range map[string]int{"itself": os.Getpid(), "no process": 1 << 30} {
		err := SeesHost(pid)
		own, _ := os.Readlink("/proc/self/ns/pid")
		if name == "no process" && own == firstPIDNamespace {
			continue // there is no other host than this one
		}
		if err == nil {
			t.Errorf("%s stands for the host", name)
		}
	}
}

func TestEnteredRefusesWhatIsNoDescriptor(t *testing.T) {
	for _, path := range []string{"/etc/nodeagent", "/proc/self/fd/x", "/proc/self/fd/9999"} {
		if err := Entered(path); err == nil {
			t.Errorf("%s was taken", path)
		}
	}
}
