package release

import (
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

var soakReleases = flag.Int("soak.releases", 6, "how many releases TestReleaseSoak makes")

// Nodes run in parallel, since a release waits more than it computes: few nodes for few releases.
const (
	maxSoakNodes    = 8
	releasesOfANode = 16
)

// soakCgroups are the cgroups of a node: the first node has all hierarchies of the machine, as in v1, the others have
// v2 alone or a single controller of v1. If the machine has only v2, all have that.
func soakCgroups(node int) string {
	single := []string{"unified", "memory", "freezer"}
	if node == 0 {
		return "/sys/fs/cgroup"
	}
	return filepath.Join("/sys/fs/cgroup", single[(node-1)%len(single)])
}

// soakTurn is the node that runs a release. The first node runs half as many as each other: with its dozen hierarchies
// a release has twice the steps.
func soakTurn(release, nodes int) int {
	turn := release % (2*nodes - 1)
	if turn >= nodes {
		turn -= nodes - 1
	}
	return turn
}

// Many releases, each in its own process; every third one is killed (SIGKILL) at a random step and started again. After
// each the whole node is as before: all planted objects are gone, no byte of a canary has changed, and no process,
// mount, cgroup, link, address, route or rule of the living is lost. make long-soak does a thousand.
func TestReleaseSoak(t *testing.T) {
	t.Parallel()
	nodes := min(max(*soakReleases/releasesOfANode, 2), maxSoakNodes)
	part, inside := mutatetest.Parts(t, nodes)
	if !inside {
		return
	}
	s := newSoak(t, soakCgroups(part))
	s.settings.PodsPerHour = 10 * *soakReleases
	s.settings.OwnerGrace, s.settings.ProcessGrace = time.Millisecond, 20*time.Millisecond // neither heeds it
	releases, due, kills, points := 0, 0, 0, maxSoakPoints
	for n := range *soakReleases {
		if soakTurn(n, nodes) != part {
			continue
		}
		dead := s.makePod(mutatetest.UID(t))
		if releases++; releases%3 == 2 {
			due++
			if _, killed := s.releaseInProcess(1 + rand.IntN(points)); killed {
				kills++
			}
		}
		if had, _ := s.releaseInProcess(0); releases%3 != 2 {
			points = min(points, had)
		}
		s.uproot(dead)
		if differences := s.differences(); len(differences) > 0 {
			t.Fatalf("after release %d the node is not as it was:\n%s", releases, strings.Join(differences, "\n"))
		}
		if releases%25 == 0 {
			unchanged(t, "what the agent sees of the living pod", s.seen, s.census(s.neighbour))
		}
	}
	unchanged(t, "what the agent sees of the living pod", s.seen, s.census(s.neighbour))
	s.quarantineHolds()
	t.Logf("%s: %d releases of up to %d points, %d killed", s.Host.Paths.CgroupMount, releases, points, kills)
	if kills < due*9/10 {
		t.Errorf("only %d of %d were killed", kills, due)
	}
}

// maxSoakPoints is more than the fault points of one release; the first release shows their number.
const maxSoakPoints = 1000

// soak is a node with a pod that stays alive.
type soak struct {
	*world
	neighbour pod
	seen      map[string]string // the neighbor's objects, as seen by the agent
	before    mutatetest.Census
	notes     map[string]bool // contents of the dead pods' volume notes
}

func newSoak(t *testing.T, cgroups string) *soak {
	t.Helper()
	s := &soak{notes: map[string]bool{}, world: newWorld(t, func(p *host.Paths) {
		if _, err := os.Stat(cgroups); err == nil {
			p.CgroupMount = cgroups
		}
	})}
	s.neighbour = s.makePod(s.living)
	s.seen, s.before = s.census(s.neighbour), s.whole()
	return s
}

// whole is the census of the node except the agent's own files: its state, its lock, and its quarantine.
func (s *soak) whole() mutatetest.Census {
	s.t.Helper()
	c := s.Whole("state", "lock")
	maps.DeleteFunc(c, func(name, _ string) bool {
		return strings.HasPrefix(name, "file "+s.Mutator.QuarantineDir())
	})
	return c
}

// differences waits for processes that a killed release left running.
func (s *soak) differences() (lines []string) {
	s.t.Helper()
	_ = actions.Poll(s.t.Context(), time.Minute, func() (bool, error) {
		lines = s.before.Differences(s.whole())
		return len(lines) == 0, nil
	})
	return lines
}

// uproot removes the objects of a dead pod that no release may remove: the host data of its bind mount, and the objects
// that plugins make with the first attachment to a network and no DEL removes.
func (s *soak) uproot(dead pod) {
	s.t.Helper()
	if got, err := os.ReadFile(filepath.Join(dead.data, "sub/canary")); err != nil || string(got) != "alive" {
		s.t.Fatalf("the canary behind a bind of the dead pod: %q, %v", got, err)
	}
	if err := os.RemoveAll(dead.data); err != nil {
		s.t.Fatal(err)
	}
	leases := filepath.Join(s.Host.Paths.CNINetworksDir, dead.attached.Network)
	for _, name := range []string{"lock", "last_reserved_ip.0", ""} {
		if err := os.Remove(filepath.Join(leases, name)); err != nil {
			s.t.Fatalf("host-local's own files: %v", err)
		}
	}
	if out, err := exec.Command("/sbin/ip", "link", "del", dead.attached.Network).CombinedOutput(); err != nil {
		s.t.Fatalf("its bridge: %v: %s", err, out)
	}
	s.notes[volumeNoteOf("gone", "vol-"+dead.uid, "gone.example.com")] = true
}

// quarantineHolds checks that the note of each volume was kept.
func (s *soak) quarantineHolds() {
	s.t.Helper()
	for name, content := range mutatetest.Snapshot(s.t, s.Mutator.QuarantineDir()) {
		if _, data, regular := strings.Cut(content, ":"); regular && !strings.HasPrefix(filepath.Base(name), ".") {
			delete(s.notes, data)
		}
	}
	if len(s.notes) > 0 {
		s.t.Errorf("not in the quarantine: %q", slices.Sorted(maps.Keys(s.notes)))
	}
}
