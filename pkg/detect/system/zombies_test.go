package system

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
)

// Real zombies of this test's own process: found while they exist, and cleared when they have been reaped.
func TestRealZombies(t *testing.T) {
	h := &host.Host{NodeName: "n", Paths: discover.DefaultPaths(), Clock: host.Now}
	check := Zombies(ZombiesSettings{PerParent: 5})
	self, err := h.ProcStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var children []*exec.Cmd
	reap := func() {
		for _, c := range children {
			_ = c.Wait()
		}
		children = nil
	}
	t.Cleanup(reap)
	for range 6 {
		c := exec.CommandContext(t.Context(), "/bin/true")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		children = append(children, c)
	}
	own := func() (count string) {
		t.Helper()
		findings, err := check.Run(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if f.Subject.Name == self.Comm {
				return f.Facts["zombies"]
			}
		}
		return ""
	}
	deadline := time.After(time.Minute)
	for own() != "6" {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%s zombies found, want 6", own())
		}
	}
	reap()
	if got := own(); got != "" {
		t.Errorf("%s zombies after they were reaped", got)
	}
}
