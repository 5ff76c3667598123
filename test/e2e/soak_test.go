package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/need"
)

var soakPods = flag.Int("soak.pods", 0, "let so many pods live and die while kubelet, containerd and the agent are "+
	"killed at random")

// soakGrace is inspect.grace of harness.Install.
const soakGrace = 6 * time.Second

// planted is a leftover that kubelet cannot remove: the directory of a pod that never was, with a CSI volume's record.
type planted struct {
	uid, dir   string
	proven     time.Time // of the first pass that could have proven something of it
	afterGrace int       // such passes after its grace
}

// soak lets pods live while what should observe them is killed.
type soak struct {
	*churn
	agent             *harness.Agent
	plants            []*planted
	planted, removed  int
	found             atomic.Int64
	passes, complete  int
	kills, incomplete map[string]int // the latter by the reason
}

// TestSoakOfPods: pods come and go, and at random moments kubelet, containerd and the agent are killed. No living pod
// is ever called a leftover, and each one that was planted is proven within two passes after its grace.
func TestSoakOfPods(t *testing.T) {
	need.Flag(t, *soakPods > 0, "-soak.pods: takes a second for each pod")
	c := &churn{inspectLab: openInspectLab(t, false), namespace: "nodeagent-soak", uids: make(map[string]string)}
	s := &soak{churn: c, agent: install(t, c.lab, nil), kills: make(map[string]int),
		incomplete: make(map[string]int)}
	if err := s.agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.makeNamespace()
	t.Cleanup(s.uproot)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := s.waves(ctx)
	var lanes, killer sync.WaitGroup
	for range 8 {
		lanes.Go(func() {
			if err := c.run(ctx, next); err != nil {
				t.Error(err)
			}
		})
	}
	finished := make(chan struct{})
	go func() { lanes.Wait(); close(finished) }()
	killer.Go(func() { s.killUntil(finished) })
	for ended := false; !ended; {
		select {
		case <-finished:
			ended = true
		default:
		}
		s.pass()
	}
	killer.Wait()
	t.Logf("%d pods, %d passes, %d of them complete, kills %v, planted %d, found %d, removed by kubelet %d", len(c.uids),
		s.passes, s.complete, s.kills, s.planted, s.found.Load(), s.removed)
	t.Logf("what made passes incomplete: %v", s.incomplete)
	if s.found.Load() == 0 || len(s.kills) < 3 && *soakPods > 100 {
		t.Errorf("this test proves little")
	}
}

// waves numbers the pods. While kubelet ends pods that were deleted by force nothing is proven: after each wave it rests
// until one that was planted is found, two minutes at most.
func (s *soak) waves(ctx context.Context) func() (int, bool) {
	const wave = 40
	var mu sync.Mutex
	pods := 0
	return func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		pods++
		if n := pods - 1; n >= *soakPods || n%wave != wave-1 {
			return n, n < *soakPods
		}
		found := s.found.Load()
		for end := time.Now().Add(2 * time.Minute); s.found.Load() == found && time.Now().Before(end); {
			if ctx.Err() != nil {
				break
			}
			pause(ctx, 200*time.Millisecond)
		}
		return pods - 1, true
	}
}

// killUntil kills one of the three at random, and starts it again, until all pods have lived.
func (s *soak) killUntil(finished <-chan struct{}) {
	ctx := context.WithoutCancel(s.t.Context())
	for {
		select {
		case <-finished:
			return
		case <-time.After(time.Duration(15+rand.IntN(30)) * time.Second):
		}
		var err error
		victim := []string{"kubelet", "containerd", "agent"}[rand.IntN(3)]
		if victim == "agent" {
			err = errors.Join(s.agent.Kill(), s.agent.Start(ctx))
		} else if err = s.lab.Stop(ctx, victim); err == nil {
			pause(ctx, time.Duration(rand.IntN(5000))*time.Millisecond)
			err = s.lab.Start(ctx, victim)
		}
		if err != nil {
			s.t.Errorf("%s: %v", victim, err)
			return
		}
		s.kills[victim]++
	}
}

// pass makes one inspection, with the agent's own thresholds, and checks what it says.
func (s *soak) pass() {
	for len(s.plants) < 2 { // three would look as if the whole node were orphaned
		s.plant()
	}
	var report inspected
	if _, err := s.agent.JSON(s.t.Context(), &report, "inspect"); err != nil {
		s.t.Error(err)
		return
	}
	s.passes++
	proven := map[string]bool{}
	for _, o := range report.Objects {
		if o.Verdict != inspect.Leftover || proven[o.Pod.UID] {
			continue
		}
		proven[o.Pod.UID] = true
		alive, err := s.alive(o.Pod.UID)
		if err != nil {
			s.t.Error(err)
		}
		if alive {
			s.t.Errorf("%s %s of living pod %+v: %s\n%v", o.Kind, o.ID, o.Pod, o.Why, o.Witnesses)
		}
	}
	var why []string
	for _, e := range report.Errors {
		why = append(why, e.What)
	}
	for _, g := range report.Gates {
		if !g.Open {
			why = append(why, string(g.Name))
		}
	}
	complete := len(why) == 0
	if complete {
		s.complete++
	}
	for _, reason := range slices.Compact(why) {
		s.incomplete[reason]++
	}
	s.plants = slices.DeleteFunc(s.plants, func(p *planted) bool { return s.done(p, proven[p.uid], complete) })
}

// done reports whether a planted leftover needs no more passes.
func (s *soak) done(p *planted, proven, complete bool) bool {
	if proven {
		s.found.Add(1)
		if err := os.RemoveAll(p.dir); err != nil {
			s.t.Error(err)
		}
		return true
	}
	if _, err := os.Stat(p.dir); err != nil {
		s.removed++ // by a kubelet that has started again
		return true
	}
	switch {
	case !complete:
	case p.proven.IsZero():
		p.proven = time.Now()
	case time.Since(p.proven) > soakGrace:
		if p.afterGrace++; p.afterGrace > 2 {
			s.t.Errorf("%s is not found, %d complete passes after its grace", p.dir, p.afterGrace)
			return true
		}
	}
	return false
}

func (s *soak) plant() {
	p := &planted{uid: string(uuid.NewUUID())}
	p.dir = filepath.Join(s.lab.Paths.KubeletRoot, "pods", p.uid)
	volume := filepath.Join(p.dir, "volumes/kubernetes.io~csi/pvc-"+p.uid)
	record := fmt.Sprintf(`{"driverName":"soak.example.com","nodeName":%q,"volumeHandle":"soak"}`, s.lab.NodeName)
	if err := errors.Join(os.MkdirAll(volume, 0o750),
		os.WriteFile(filepath.Join(volume, "vol_data.json"), []byte(record), 0o600)); err != nil {
		s.t.Fatal(err)
	}
	s.planted++
	s.plants = append(s.plants, p)
}

func (s *soak) uproot() {
	for _, p := range s.plants {
		_ = os.RemoveAll(p.dir)
	}
}
