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
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/need"
)

var soakPods = flag.Int("soak.pods", 0, "let so many pods live and die while kubelet, containerd and the agent are "+
	"killed at random")

// soakGrace is inspect.grace of harness.Install.
const soakGrace = 6 * time.Second

// soakWave is the number of pods within which a leftover must be proven; the first soakForced are deleted by force.
const soakWave, soakForced = 100, 20

// planted is a leftover that kubelet cannot remove: the directory of a pod that never existed, with a CSI volume's
// record.
type planted struct {
	uid, dir   string
	at         finding.Timestamp // time of planting
	first      finding.Timestamp // of the first complete pass that started after it was planted
	afterGrace int               // complete passes after its grace
	all        int               // passes after its grace, complete or not
	why        string            // why it was not a leftover in the last of them
}

// soak lets pods live while their observers are killed, and reads each pass of the agent.
type soak struct {
	*churn
	agent             *harness.Agent
	last              finding.Timestamp // of the last pass read
	plants            []*planted
	planted, removed  int
	found             atomic.Int64
	passes, complete  int
	confirmed         map[string]bool      // UIDs of pods of the churn that were proven gone, correctly
	ending            map[string]time.Time // until when kubelet keeps pods running that were deleted by force; by UID, under mu
	kills, incomplete map[string]int       // the latter by the reason
	took              map[[2]int]int       // number of findings, by passes after the grace: complete ones, all
	latest            time.Duration        // after its grace
}

// TestSoakOfPods: pods come and go, and kubelet, containerd and the agent are killed at random moments. No living pod
// is ever called a leftover, and each planted one is proven within two complete passes after its grace.
func TestSoakOfPods(t *testing.T) {
	need.Flag(t, *soakPods > 0, "-soak.pods: takes a second for each pod")
	c := &churn{inspectLab: openInspectLab(t, false), namespace: "nodeagent-soak", uids: make(map[string]string)}
	s := &soak{churn: c, agent: install(t, c.lab, nil), kills: make(map[string]int), incomplete: make(map[string]int),
		confirmed: make(map[string]bool), ending: make(map[string]time.Time), took: make(map[[2]int]int)}
	c.shape, c.forced = s.slow, s.force
	if err := s.agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.makeNamespace()
	s.stand(20)
	t.Cleanup(s.uproot)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := s.waves(ctx)
	var lanes sync.WaitGroup
	for range 12 {
		lanes.Go(func() {
			if err := c.run(ctx, next); err != nil {
				t.Error(err)
			}
		})
	}
	finished, killed := make(chan struct{}), make(chan struct{})
	go func() { lanes.Wait(); close(finished) }()
	go func() { s.killUntil(finished); close(killed) }()
	s.readPasses(killed)
	t.Logf("%d pods, %d of them proven to be gone; %d passes, %d of them complete; kills %v; planted %d, found %d, "+
		"removed by kubelet %d", len(c.uids), len(s.confirmed), s.passes, s.complete, s.kills, s.planted, s.found.Load(),
		s.removed)
	t.Logf("what made passes incomplete: %v", s.incomplete)
	t.Logf("found, by complete passes and passes after the grace: %v; at the latest %s after it", s.took, s.latest)
	if int(s.found.Load()) < *soakPods/50 || len(s.kills) < 3 && *soakPods > 500 {
		t.Errorf("this test proves little")
	}
}

// slow gives some of the pods that are deleted by force more time to end than the agent's grace period.
func (s *soak) slow(n int, pod *corev1.Pod) {
	if n%soakWave < soakForced && n%2 == 1 {
		*pod.Spec.TerminationGracePeriodSeconds = int64(2*soakGrace/time.Second) - 1
	}
}

func (s *soak) force(n int, pod *corev1.Pod) bool {
	if n%soakWave >= soakForced {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending[string(pod.UID)] = time.Now().Add(time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second)
	return true
}

// stand creates pods that live until the end of the test.
func (s *soak) stand(pods int) {
	for n := range pods {
		pod := s.pod(1)
		pod.Name, pod.Spec.Containers[0].Command = fmt.Sprintf("standing-%d", n), []string{"sleep", "100000"}
		var made corev1.Pod
		request := s.rest.Post().Namespace(s.namespace).Resource("pods").Body(pod)
		if err := request.Do(s.t.Context()).Into(&made); err != nil {
			s.t.Fatal(err)
		}
		s.uids[string(made.UID)] = made.Name
	}
}

// readPasses reads the passes of the agent until all pods have lived and all planted leftovers are found.
func (s *soak) readPasses(ended <-chan struct{}) {
	const limit = 5 * time.Minute // for the last planted ones
	var end time.Time
	for {
		select {
		case <-ended:
			if end.IsZero() {
				end = time.Now().Add(limit)
			}
		default:
			for len(s.plants) < 2 { // more would look as if the whole node were orphaned
				s.plant()
			}
		}
		switch {
		case end.IsZero():
		case len(s.plants) == 0:
			return
		case time.Now().After(end):
			s.t.Errorf("%d planted leftovers are not found: %v", len(s.plants), s.incomplete)
			return
		}
		pause(s.t.Context(), 200*time.Millisecond)
		answer, err := status.AskStatus(s.t.Context(), filepath.Join(s.agent.Dir, "agent.sock"))
		switch report := answer.Leftovers; {
		case err != nil, report == nil: // just killed, or starting
		case report.At.SinceBoot != s.last.SinceBoot:
			s.last = report.At
			s.pass(report)
		}
	}
}

// waves numbers the pods. While kubelet ends pods that were deleted by force no leftover is proven: a wave waits until
// two planted ones have been found since the start of the previous wave.
func (s *soak) waves(ctx context.Context) func() (int, bool) {
	var mu sync.Mutex
	var pods int
	var found int64
	return func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		pods++
		if n := pods - 1; n >= *soakPods || n%soakWave != soakWave-1 {
			return n, n < *soakPods
		}
		end := time.Now().Add(3 * time.Minute)
		for s.found.Load() < found+2 && ctx.Err() == nil && time.Now().Before(end) {
			pause(ctx, 200*time.Millisecond)
		}
		found = s.found.Load()
		s.t.Logf("%d pods have begun, %d planted leftovers are found", pods, found)
		return pods - 1, true
	}
}

// killUntil kills one of the three at random and restarts it, until all pods have lived. It lets a kubelet live long
// enough for its garbage collector, which first runs after a minute: otherwise the sandboxes of ended pods pile up.
func (s *soak) killUntil(finished <-chan struct{}) {
	const collects = 150 * time.Second
	ctx := context.WithoutCancel(s.t.Context())
	var kubelet time.Time
	for {
		select {
		case <-finished:
			return
		case <-time.After(time.Duration(20+rand.IntN(40)) * time.Second):
		}
		var err error
		victims := []string{"containerd", "agent", "kubelet"}
		if time.Since(kubelet) < collects {
			victims = victims[:2]
		}
		victim := victims[rand.IntN(len(victims))]
		if victim == "kubelet" {
			kubelet = time.Now()
		}
		if victim == "agent" {
			err = errors.Join(s.agent.Kill(), s.agent.Start(ctx))
		} else if err = errors.Join(s.lab.Signal(victim, syscall.SIGKILL), s.lab.Stop(ctx, victim)); err == nil {
			pause(ctx, time.Duration(rand.IntN(5000))*time.Millisecond)
			err = s.lab.Start(ctx, victim)
		}
		if err != nil {
			s.t.Errorf("%s: %v", victim, err)
			return
		}
		s.kills[victim]++
		s.t.Logf("%s was killed", victim)
	}
}

// pass checks one pass of the agent.
func (s *soak) pass(report *object.Report) {
	s.passes++
	verdicts := make(map[string]string) // on planted leftovers, by UID: empty for a leftover
	for _, o := range report.Objects {
		if o.Kind == object.PodDirectory && o.Verdict != object.Leftover {
			verdicts[o.Pod.UID] = string(o.Verdict) + ": " + o.Why
		}
		if o.Verdict == object.Leftover {
			verdicts[o.Pod.UID] = ""
			s.confirm(&o, report.At)
		}
	}
	var why []string
	for _, e := range report.Errors {
		why = append(why, e.What)
	}
	for _, g := range report.Gates {
		if !g.Open {
			why = append(why, g.Name)
			s.t.Logf("gate %s is closed: %s", g.Name, g.Why)
			if g.Name == "no-mass-orphaning" {
				s.t.Logf("pods with a directory that no witness knows: %v", s.orphans(report))
			}
		}
	}
	if len(why) == 0 {
		s.complete++
	}
	slices.Sort(why)
	for _, reason := range slices.Compact(why) {
		s.incomplete[reason]++
	}
	s.plants = slices.DeleteFunc(s.plants, func(p *planted) bool {
		verdict, listed := verdicts[p.uid]
		return s.done(p, listed && verdict == "", len(why) == 0, verdict, report.At)
	})
}

// orphans counts the pods with a directory that no witness knows, by the pod's later fate, and by whether it ran when
// it was listed.
func (s *soak) orphans(report *object.Report) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	directories, running := make(map[string]bool), make(map[string]bool)
	for _, o := range report.Objects {
		if o.Verdict != object.Live && o.Pod.UID != "" {
			directories[o.Pod.UID] = directories[o.Pod.UID] || o.Kind == object.PodDirectory
			running[o.Pod.UID] = running[o.Pod.UID] || o.Kind == object.Process || o.Facts["state"] == "RUNNING"
		}
	}
	counts := make(map[string]int)
	for uid, has := range directories {
		what := "planted"
		switch {
		case !has:
			continue
		case !s.ending[uid].IsZero():
			what = "deleted by force"
		case s.uids[uid] != "":
			what = "deleted"
		}
		if running[uid] {
			what += ", running"
		}
		counts[what]++
	}
	return counts
}

// confirm checks that the pod of a leftover is gone. A pod that is in the apiserver now existed during all of the pass.
func (s *soak) confirm(o *object.Assessment, at finding.Timestamp) {
	s.mu.Lock()
	_, made := s.uids[o.Pod.UID]
	ends := s.ending[o.Pod.UID]
	s.mu.Unlock()
	if o.Running && at.Wall.Before(ends) {
		s.t.Errorf("%s %s of %+v, which kubelet lets run until %s: %s\n%v", o.Kind, o.ID, o.Pod, ends, o.Why, o.Witnesses)
	}
	if !made || s.confirmed[o.Pod.UID] {
		return
	}
	switch alive, err := s.alive(o.Pod.UID); {
	case err != nil:
		s.t.Error(err)
	case alive:
		s.t.Errorf("%s %s of living pod %+v: %s\n%v", o.Kind, o.ID, o.Pod, o.Why, o.Witnesses)
	default:
		s.confirmed[o.Pod.UID] = true
	}
}

// done reports whether a planted leftover needs no more passes.
func (s *soak) done(p *planted, proven, complete bool, why string, at finding.Timestamp) bool {
	if proven {
		if age := at.Since(p.at); age < soakGrace {
			s.t.Errorf("%s is proven after %s", p.dir, age)
		}
		s.found.Add(1)
		s.took[[2]int{p.afterGrace + 1, p.all + 1}]++
		s.latest = max(s.latest, at.Since(p.at)-soakGrace)
		if err := os.RemoveAll(p.dir); err != nil {
			s.t.Error(err)
		}
		return true
	}
	if _, err := os.Stat(p.dir); err != nil {
		s.removed++ // by a restarted kubelet
		return true
	}
	if at.SinceBoot > p.at.SinceBoot && at.Since(p.at) > soakGrace {
		p.all++
	}
	switch {
	case !complete || at.SinceBoot < p.at.SinceBoot:
	case p.first.IsZero():
		p.first = at
	case at.Since(p.first) > soakGrace:
		if p.afterGrace++; p.afterGrace > 2 {
			s.t.Errorf("%s is not found, %d complete passes after its grace: %s, then %s", p.dir, p.afterGrace, p.why, why)
			return true
		}
		p.why = why
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
	p.at = host.Now()
	s.planted++
	s.plants = append(s.plants, p)
}

func (s *soak) uproot() {
	for _, p := range s.plants {
		_ = os.RemoveAll(p.dir)
	}
}
