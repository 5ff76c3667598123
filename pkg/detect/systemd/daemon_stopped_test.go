package systemd

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// The set of daemons may come from a table of a minute ago, their state may not: a daemon stopped after the table was
// made is found at once, one started since within a minute, and an ended one is ignored.
func TestDaemonStoppedAfterTheTableWasMade(t *testing.T) {
	m, check := checktest.NewLoadMachine(t), DaemonStopped()
	m.Host.Processes = host.NewProcesses()
	daemon := func(pid int, comm, state string) {
		m.Process(pid, state, 7, "x.service")
		m.Write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (%s) %s 1 1 1 0 -1 0 2 0 0 0 7 0 0 0 20 0 1 0 339 1 1 1",
			pid, comm, state))
		m.Write(fmt.Sprintf("proc/%d/status", pid), "NSpid:\t"+fmt.Sprint(pid)+"\n")
	}
	daemon(10, "chronyd", "S")
	daemon(11, "dockerd", "S")
	checktest.Expect(t, check, m.Host)
	m.Up += 30 * time.Second
	daemon(10, "chronyd", "T")
	daemon(11, "dockerd", "Z")
	daemon(12, "containerd", "T")
	checktest.Expect(t, check, m.Host, "daemon/chronyd=DaemonStopped warning")
	m.Up += 31 * time.Second
	checktest.Expect(t, check, m.Host, "daemon/chronyd=DaemonStopped warning",
		"daemon/containerd=DaemonStopped warning")
}
