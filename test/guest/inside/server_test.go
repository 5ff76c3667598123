package inside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// server is a machine on the network of the guest: a network namespace at the other end of a cable.
type server struct {
	t       *testing.T
	name    string
	address string // of the server
	own     string // address of the guest, as the server sees it
}

// connect creates a server. Each has its own number, from 1.
func connect(t *testing.T, name string, number int) server {
	t.Helper()
	s := server{t: t, name: name, address: fmt.Sprintf("10.9.%d.2", number), own: fmt.Sprintf("10.9.%d.1", number)}
	run(t, "modprobe", "veth")
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { run(t, "ip", "netns", "delete", name) })
	run(t, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
	run(t, "ip", "address", "add", s.own+"/24", "dev", name)
	run(t, "ip", "link", "set", name, "up")
	run(t, "ip", "-n", name, "address", "add", s.address+"/24", "dev", "eth0")
	run(t, "ip", "-n", name, "link", "set", "lo", "up")
	s.cable(true)
	return s
}

// cable connects the server, or cuts it off without notice to its peers.
func (s server) cable(connected bool) {
	s.t.Helper()
	run(s.t, "ip", "-n", s.name, "link", "set", "eth0", map[bool]string{true: "up", false: "down"}[connected])
}

// shell runs a script in the server's network.
func (s server) shell(script string) {
	s.t.Helper()
	out, err := exec.Command("nsenter", "--net=/run/netns/"+s.name, "sh", "-ec", script).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %s: %v: %s", s.name, script, err, strings.TrimSpace(string(out)))
	}
}

// unpacked is a command of a package that is unpacked, not installed.
func unpacked(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(*programs, program), args...)
	cmd.Env = append(os.Environ(),
		fmt.Sprintf("LD_LIBRARY_PATH=%[1]s/usr/lib/x86_64-linux-gnu:%[1]s/usr/lib/x86_64-linux-gnu/samba", *programs))
	return cmd
}

// expectReplay fails unless the agent, replaying the kernel's log, reports want about a subject.
func expectReplay(t *testing.T, subject, want string) {
	t.Helper()
	var log, finding string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		log = run(t, "dmesg")
		replay := exec.Command(*binary, "replay", "--format", "dmesg")
		replay.Stdin = strings.NewReader(log)
		out, _ := replay.CombinedOutput() // its exit code depends on the findings
		for finding = range strings.SplitSeq(string(out), "\n\n") {
			if strings.Contains(finding, subject) && strings.Contains(finding, want) {
				t.Log(finding)
				return
			}
		}
	}
	t.Errorf("nothing is reported of %s that contains %q; end of the kernel's log:\n%s", subject, want,
		log[max(0, len(log)-3000):])
}

// probesLeft fails if more of the agent's children hang than hung-mounts may leave, or if they hide their name.
func (a *agent) probesLeft() {
	a.t.Helper()
	threads, _ := filepath.Glob("/proc/[0-9]*/task/*/stat")
	hang := map[string]bool{}
	for _, file := range threads {
		pid := strings.Split(file, "/")[2]
		if fields := strings.Fields(read(file)); len(fields) > 3 && fields[2] == "D" &&
			strings.HasPrefix(read("/proc/"+pid+"/cmdline"), "nodeagent-probe") {
			hang[pid] = true
			if fields[1] != "(nodeagent-probe)" {
				a.t.Errorf("a probe hangs under the name %s", fields[1])
			}
		}
	}
	a.t.Logf("%d probes hang", len(hang))
	if len(hang) > 2 {
		a.t.Errorf("%d probes hang, want no more than 2", len(hang))
	}
}
