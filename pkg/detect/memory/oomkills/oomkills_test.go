package oomkills

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// oomMachine is the machine of a fixture on which processes are killed.
func oomMachine(t *testing.T) (*host.Host, func(total string, events string)) {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/oom-kills/ok.txtar")
	if err != nil {
		t.Fatal(err)
	}
	h, steps, _ := checktest.FixtureHost(t, archive)
	for _, m := range steps {
		m.Come(t, h)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(h.Files.Root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h, func(total, events string) {
		write("proc/vmstat", "oom_kill "+total+"\n")
		write("sys/fs/cgroup/system.slice/memory.events", events)
		write("sys/fs/cgroup/system.slice/mysql.service/memory.events", events)
	}
}

func oomReasons(t *testing.T, check detect.Check, h *host.Host) string {
	t.Helper()
	findings, err := check.Run(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	reasons := ""
	for _, f := range findings {
		reasons += f.Reason + " " + f.Facts["kills"] + " "
	}
	return reasons
}

// Kills while no agent ran are reported by the next agent, and reported kills stay reported; but not after a reboot.
func TestOOMKillsSurviveTheAgent(t *testing.T) {
	h, killed := oomMachine(t)
	kept := checktest.StateStore{}
	if got := oomReasons(t, New(kept), h); got != "" {
		t.Errorf("first run: %s", got)
	}
	killed("37", "oom 1\noom_kill 1\n")
	if got := oomReasons(t, New(kept), h); got != "CgroupOOMKilled 1 " {
		t.Errorf("after a kill without an agent: %q", got)
	}
	if got := oomReasons(t, New(kept), h); got != "CgroupOOMKilled 1 " {
		t.Errorf("after another restart: %q", got)
	}
	now := h.Clock()
	h.Clock = func() finding.Timestamp {
		now.Boot, now.SinceBoot = "another", time.Minute
		return now
	}
	killed("50", "oom 9\noom_kill 9\n")
	if got := oomReasons(t, New(kept), h); got != "" {
		t.Errorf("after a reboot: %q", got)
	}
}

// The saved state of an agent may be of any age and form.
func TestOOMKillsForgetsWhatIsMalformed(t *testing.T) {
	h, _ := oomMachine(t)
	for _, text := range []string{"", "{", `{"boot":"fixture","counted":true,"total":36,"tallies":{"x":null,"y":{}}}`,
		`{"boot":"fixture","counted":true,"total":99}`} {
		if got := oomReasons(t, New(checktest.StateStore{oomKey: []byte(text)}), h); got != "" {
			t.Errorf("%s: %q", text, got)
		}
	}
}
