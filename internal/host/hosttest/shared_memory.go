package hosttest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/test/need"
)

// SharedMemory makes a process in the given cgroups create a segment of System V shared memory of 8192 bytes, of which
// one is written, and returns its ID. The process lives until end is called. The segment is removed when the test ends.
func SharedMemory(t testing.TB, cgroups ...string) (id string, end func()) {
	t.Helper()
	creator := exec.Command(need.Program(t, "perl"), "-e",
		`$| = 1; <STDIN>; $id = shmget(0, 8192, 01600); shmwrite($id, "x", 0, 1); print "$id\n"; sleep 600`)
	in, inErr := creator.StdinPipe()
	out, outErr := creator.StdoutPipe()
	if inErr != nil || outErr != nil || creator.Start() != nil {
		t.Fatal(inErr, outErr)
	}
	end = func() { _ = creator.Process.Kill(); _ = creator.Wait() }
	t.Cleanup(end)
	for _, dir := range cgroups {
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(fmt.Sprint(creator.Process.Pid)), 0o600); err != nil {
			t.Logf("%s: %v", dir, err) // cpuset must be configured first
		}
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	id = strings.TrimSpace(line)
	number, err := strconv.Atoi(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := unix.SysvShmCtl(number, unix.IPC_RMID, nil); err != nil {
			t.Errorf("remove shared memory %d: %v", number, err)
		}
	})
	return id, end
}
