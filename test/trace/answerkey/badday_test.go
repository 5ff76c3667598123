package answerkey

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/need"
)

// crowd creates pods at a steady rate until stop is closed: of ten, seven are ready in time, one is never ready, one is
// deleted when it is ready, and one is ready shortly after its time.
func (s *theater) crowd(perSecond int, stop <-chan struct{}) (created int64) {
	var count atomic.Int64
	var workers sync.WaitGroup
	ticks := make(chan int)
	for range 32 {
		workers.Go(func() {
			for i := range ticks {
				s.extra(i, &count)
			}
		})
	}
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			close(ticks)
			workers.Wait()
			return count.Load()
		case <-ticker.C:
			ticks <- i
		}
	}
}

// extra plays one pod of a crowd. The apiserver may be away.
func (s *theater) extra(i int, count *atomic.Int64) {
	p := &play{name: fmt.Sprintf("crowd-%06d", i), steps: []step{{time.Duration(1+i%4) * time.Second, isReady()}}}
	switch i % 10 {
	case 3:
		p.steps[0].status = isRunning()
	case 6:
		p.steps[0].after = promised + 4*time.Second
	}
	pod := p.object()
	text, err := json.Marshal(pod)
	s.check(err)
	if s.do(http.MethodPost, podsPath, plain, text, pod) != nil {
		return
	}
	if count.Add(1); i%10 == 9 {
		time.AfterFunc(8*time.Second, func() { _ = s.do(http.MethodDelete, podsPath+"/"+pod.Name, plain, nil, nil) })
	}
}

// tally compares all verdicts with those of the referee. An act that was not observed may be unknown; a pod that came and
// went while tracecenter did not run may have no verdict.
type tally struct{ same, unknown, absent, wrong int }

func (s *theater) tally() {
	s.t.Helper()
	var n tally
	judged := map[string][]act{}
	for _, a := range s.referee() {
		if a.Namespace == namespace {
			judged[a.UID] = append(judged[a.UID], a)
		}
	}
	for uid, want := range judged {
		var got []act
		s.await(want[0].Name+" judged", func() bool {
			got = s.ask(uid)
			return !strings.Contains(outcomes(got), "open")
		})
		gone := slices.ContainsFunc(want, func(a act) bool { return a.Act == "deletion" })
		for _, w := range want {
			same := slices.DeleteFunc(slices.Clone(got), func(a act) bool { return a.Act != w.Act })
			switch {
			case len(same) == 0 && (gone && len(got) == 0 || w.Act == "deletion"):
				n.absent++
			case len(same) == 1 && same[0].Outcome == w.Verdict:
				n.same++
			case len(same) == 1 && same[0].Outcome == "unknown":
				n.unknown++
			default:
				n.wrong++
				s.t.Errorf("%s %s: %+v, referee %+v", w.Name, w.Act, same, w)
			}
		}
	}
	s.t.Logf("%d pods: %+v", len(judged), n)
	if n.absent*20 > len(judged) || n.unknown*2 > n.same {
		s.t.Errorf("too many acts were not observed")
	}
}

// tracecenter is killed each ten seconds under load. Each pod of the audit log has one verdict, and none is wrong.
func TestRealAPIServerKilled(t *testing.T) {
	need.Flag(t, *long && *withAPIServer, "-apiserver -long: five minutes of load")
	s := open(t, newEtcd(t))
	stop := make(chan struct{})
	var load sync.WaitGroup
	var created int64
	began := time.Now()
	load.Go(func() { created = s.crowd(*rate, stop) })
	kills := 0
	for time.Since(began) < 5*time.Minute {
		s.sleep(10 * time.Second)
		_ = s.trace.Process.Kill()
		_ = s.trace.Wait()
		s.serve()
		kills++
	}
	close(stop)
	load.Wait()
	t.Logf("%d pods, %.1f each second; %d kills", created, float64(created)/time.Since(began).Seconds(), kills)
	s.sleep(2 * promised)
	s.tally()
}

// The apiserver and tracecenter are frozen in turns, and the history of the watch is lost.
func TestRealAPIServerLateWatch(t *testing.T) {
	need.Flag(t, *long && *withAPIServer, "-apiserver -long: the apiserver is frozen for 90 seconds")
	s := open(t, newEtcd(t))
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() { s.crowd(4, stop) })
	frozen := func(signal func(os.Signal) error, d time.Duration) {
		s.sleep(10 * time.Second)
		s.check(signal(syscall.SIGSTOP))
		s.sleep(d)
		s.check(signal(syscall.SIGCONT))
	}
	frozen(s.server.Signal, 90*time.Second)
	for _, d := range []time.Duration{2 * time.Second, 4 * time.Second, 30 * time.Second} {
		frozen(s.trace.Process.Signal, d)
	}
	// The watch cannot be continued: tracecenter is stopped while the apiserver is started anew after a compaction.
	s.sleep(10 * time.Second)
	s.check(s.trace.Process.Signal(syscall.SIGSTOP))
	s.server.Terminate()
	s.server.Compact()
	s.server.Restart()
	s.sleep(3 * time.Second)
	s.check(s.trace.Process.Signal(syscall.SIGCONT))
	s.sleep(10 * time.Second)
	close(stop)
	load.Wait()
	s.sleep(2 * promised)
	s.tally()
}

// tracecenter may not read Events. Its verdicts are those of the referee, or unknown.
func TestRealAPIServerWithoutEvents(t *testing.T) {
	need.Flag(t, *long && *withAPIServer, "-apiserver -long: the verdicts of the answer key once more")
	s := prepare(t, newEtcd(t), policy)
	s.kubeconfig = s.reader(`"pods","nodes"`)
	s.serve()
	var parts sync.WaitGroup
	begin := make(places, 16)
	for _, p := range plays() {
		if strings.HasSuffix(p.name, "e-hook") {
			continue // kwok writes the start of the container into its first status, which comes after the hook; kubelet knows it
		}
		begin.take()
		parts.Go(func() { s.perform(p, begin) })
	}
	parts.Go(s.taint)
	parts.Wait()
	s.sleep(2 * promised)
	s.tally()
}

// reader returns a kubeconfig for an identity that reads resources of the core group, and what else tracecenter needs.
func (s *theater) reader(resources string) string {
	const group = "/apis/rbac.authorization.k8s.io/v1/"
	s.call(http.MethodPost, group+"clusterroles", json.RawMessage(`{"metadata":{"name":"reader"},"rules":[
 {"apiGroups":[""],"resources":[`+resources+`],"verbs":["list","watch"]},
 {"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["list","watch"]},
 {"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list"]},
 {"nonResourceURLs":["/readyz","/readyz/etcd"],"verbs":["get"]}]}`), nil)
	s.call(http.MethodPost, group+"clusterrolebindings", json.RawMessage(`{"metadata":{"name":"reader"},
 "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reader"},
 "subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"agent"}]}`), nil)
	return s.server.Kubeconfig("reader", "agent")
}
