package kube

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// restingKubelet counts the requests to kubelet, and kubelet's own requests to the apiserver for them.
type restingKubelet struct {
	client  *Client
	host    host.Kubelet
	pods    int // requests
	scrapes int
	reviews int
	err     error
	process host.Process
	silent  atomic.Bool          // no bookmarks come
	known   map[string]time.Time // time of kubelet's last request to the apiserver, by key
}

// review asks the apiserver unless kubelet still knows the answer.
func (k *restingKubelet) review(what string, ttl time.Duration) {
	if at, ok := k.known[what]; !ok || time.Since(at) > ttl {
		k.known[what] = time.Now()
		k.reviews++
	}
}

func (k *restingKubelet) called(resource string) {
	k.review("token", 2*time.Minute)
	k.review(resource, 5*time.Minute)
}

func newRestingKubelet(t *testing.T) *restingKubelet {
	t.Helper()
	client, err := New(Config{Node: testNode}, nil)
	if err != nil {
		t.Fatal(err)
	}
	client.changes.begin(nil)
	client.changes.setLive(true)
	k := &restingKubelet{client: client, process: host.Process{PID: 7, StartTime: 1}, known: map[string]time.Time{}}
	k.host = client.AtRest(host.Kubelet{
		Pods: func(context.Context) ([]corev1.Pod, error) {
			k.pods++
			k.called("pods")
			return make([]corev1.Pod, k.pods), k.err
		},
		Scrape: func(context.Context) (*kubelet.Scrape, error) {
			k.scrapes++
			k.called("metrics")
			return &kubelet.Scrape{}, k.err
		},
		Process: func() (host.Process, error) { return k.process, nil },
	})
	go func() {
		for {
			select {
			case <-t.Context().Done():
				return
			case <-time.After(time.Minute):
			}
			if !k.silent.Load() {
				client.changes.bookmark()
			}
		}
	}()
	time.Sleep(time.Minute) // of the bubble: answers from before the watch do not hold
	return k
}

func (k *restingKubelet) list(t *testing.T) int {
	t.Helper()
	pods, err := k.host.RecentPods(t.Context())
	if !errors.Is(err, k.err) {
		t.Errorf("RecentPods() = %v, want %v", err, k.err)
	}
	return len(pods)
}

// At rest all requests to kubelet cause three requests to the apiserver in 40 minutes. Together with the agent's own
// requests in the same time (the Node, the DaemonSets, the CSINode, the watch, a condition's hourly refresh and the
// hourly read of the Node: fewer than five) that makes one request every five minutes.
func TestCostOfRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRestingKubelet(t)
		const hours = 10
		passes := time.Now()
		for minute := range hours * 60 {
			for range 2 {
				k.list(t)
				time.Sleep(30 * time.Second)
			}
			if _, err := k.host.RecentScrape(t.Context()); err != nil {
				t.Fatal(err)
			}
			if minute > 0 && !k.client.still(time.Since(passes)) { // the inspection, as in pkg/inspect
				passes = time.Now()
				_, _ = k.host.Pods(t.Context())
			}
		}
		const rounds = hours*60/40 + 1
		if k.scrapes > rounds || k.pods > 2*rounds || k.reviews > 3*rounds {
			t.Errorf("in %d hours %d lists, %d scrapes, %d reviews by the apiserver", hours, k.pods, k.scrapes, k.reviews)
		}
		if k.scrapes < rounds-1 || k.pods < 2*(rounds-1) {
			t.Errorf("in %d hours only %d lists, %d scrapes", hours, k.pods, k.scrapes)
		}
	})
}

// Answers that may have changed are requested again.
func TestRecentPods(t *testing.T) {
	changed := func(k *restingKubelet) {
		p := pod("a", testNode)
		k.client.changes.observe(watch.Modified, &p)
		time.Sleep(podsShare)
	}
	for name, c := range map[string]struct {
		happens func(k *restingKubelet)
		again   bool
	}{
		"nothing":         {func(*restingKubelet) { time.Sleep(5 * time.Minute) }, false},
		"a pod changes":   {changed, true},
		"another kubelet": {func(k *restingKubelet) { k.process.StartTime++ }, true},
		"the watch is lost": {func(k *restingKubelet) {
			k.client.changes.setLive(false)
			time.Sleep(podsShare)
		}, true},
		"the watch is lost for a moment": {func(k *restingKubelet) {
			k.client.changes.setLive(false)
			time.Sleep(podsShare)
			k.client.changes.setLive(true)
		}, false},
		"the watch hangs": {func(k *restingKubelet) {
			k.silent.Store(true)
			time.Sleep(watchSilence + time.Minute)
		}, true},
		"the watch begins anew": {func(k *restingKubelet) {
			time.Sleep(podsShare)
			k.client.changes.begin(nil)
		}, true},
		"a new round": {func(*restingKubelet) { time.Sleep(roundEvery) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newRestingKubelet(t)
				k.client.rounds.start = time.Now() // so that no round begins by chance
				first := k.list(t)
				c.happens(k)
				if again := k.list(t) != first; again != c.again {
					t.Errorf("asked again: %v", again)
				}
			})
		})
	}
}

// Kubelet may learn of a change after the watch: a list from shortly after it is not kept.
func TestRecentPodsShortlyAfterAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRestingKubelet(t)
		k.client.rounds.start = time.Now()
		p := pod("a", testNode)
		k.client.changes.observe(watch.Deleted, &p)
		time.Sleep(time.Second)
		first := k.list(t)
		time.Sleep(podsShare - time.Second)
		if k.list(t) != first {
			t.Error("asked for each check")
		}
		time.Sleep(settleTime)
		second := k.list(t)
		if second == first {
			t.Error("kept what kubelet said in the moment of the change")
		}
		time.Sleep(roundEvery / 2)
		if k.list(t) != second {
			t.Error("asked although nothing has changed")
		}
	})
}

// Answers of the apiserver about DaemonSets and pods hold beyond their minutes while no pod changes, but not forever.
func TestStill(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(k *restingKubelet)
		again   bool
	}{
		"nothing": {func(*restingKubelet) {}, false},
		"a pod changes": {func(k *restingKubelet) {
			p := pod("a", testNode)
			k.client.changes.observe(watch.Added, &p)
		}, true},
		"the watch is lost": {func(k *restingKubelet) { k.client.changes.setLive(false) }, true},
		"a new round":       {func(*restingKubelet) { time.Sleep(roundEvery) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newRestingKubelet(t)
				k.client.rounds.start = time.Now()
				fetched := 0
				lists := newCached(func(context.Context) (int, error) { fetched++; return fetched, nil })
				lists.holds = k.client.daemonSets.holds
				first, _ := lists.get(t.Context())
				c.happens(k)
				time.Sleep(2*cacheFor + time.Second)
				again, _ := lists.get(t.Context())
				if (again != first) != c.again {
					t.Errorf("asked again: %v", again != first)
				}
			})
		})
	}
}

// A refusal holds for a round: after 30 s, kubelet would ask the apiserver again for each request. Other errors are not
// cached.
func TestRecentPodsErrors(t *testing.T) {
	for err, want := range map[error]int{hosterr.ErrForbidden: 1, errors.New("down"): 3} {
		synctest.Test(t, func(t *testing.T) {
			k := newRestingKubelet(t)
			k.client.rounds.start = time.Now()
			k.client.changes.setLive(false) // the refusal does not depend on pods
			k.err = err
			for range 3 {
				k.list(t)
				time.Sleep(time.Minute)
			}
			if k.pods != want {
				t.Errorf("%v: asked %d times, want %d", err, k.pods, want)
			}
			k.err = nil
			time.Sleep(roundEvery)
			k.list(t)
		})
	}
}

// Counters are read each minute while pods change, and whenever a check insists.
func TestRecentScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRestingKubelet(t)
		k.client.rounds.start = time.Now()
		ask := func(want int, what string) {
			t.Helper()
			if _, err := k.host.RecentScrape(t.Context()); err != nil || k.scrapes != want {
				t.Errorf("%s: %d scrapes, want %d, %v", what, k.scrapes, want, err)
			}
			time.Sleep(time.Minute)
		}
		ask(1, "first")
		ask(1, "at rest")
		p := pod("a", testNode)
		k.client.changes.observe(watch.Modified, &p)
		ask(2, "after a change")
		ask(3, "a minute later")
		time.Sleep(activeAfterChange)
		ask(3, "at rest again")
		if _, err := k.host.Scrape(t.Context()); err != nil || k.scrapes != 4 {
			t.Errorf("Scrape(): %d scrapes, %v", k.scrapes, err)
		}
		k.client.changes.setLive(false)
		ask(5, "without a watch")
	})
}
