package podevidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/event"
)

const (
	uid     = "3f1c5a80-0000-4000-8000-000000000001" // not among the sampled
	sampleU = "3f1c5a80-0000-4000-8000-000000000011"
)

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

// pods is the watch of the node's pods.
type pods struct{ follower func(*corev1.Pod, bool) }

func (p *pods) Follow(follower func(*corev1.Pod, bool)) { p.follower = follower }

// node is a node whose clock the test sets, with a follower of its pods.
type node struct {
	*Follower
	t    testing.TB
	time time.Time
	sent []event.Evidence
}

func newNode(t testing.TB) *node {
	n := &node{t: t, time: start}
	h := hosttest.Host(t)
	n.Follower = New(h, &pods{}, func(e event.Evidence) { n.sent = append(n.sent, e) })
	mountinfo := filepath.Join(h.Files.Root, "proc/1/mountinfo")
	err := errors.Join(os.MkdirAll(filepath.Dir(mountinfo), 0o700),
		os.WriteFile(mountinfo, []byte("22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	n.now = func() time.Time { return n.time }
	n.streaming.Store(true)
	return n
}

// saw shows a change of a pod at a time.
func (n *node) saw(s float64, pod *corev1.Pod, gone bool) {
	n.time = at(s)
	n.tracker.saw(pod, gone, n.time)
	n.step(context.Background())
}

// wait advances the clock to each time at which the follower wants to look, up to a limit.
func (n *node) wait(s float64) {
	for {
		next := n.step(context.Background())
		if next.IsZero() || next.After(at(s)) {
			n.time = at(s)
			return
		}
		n.time = next
	}
}

func (n *node) event(s float64, kind cri.ContainerEventType, id string, containers ...*cri.ContainerStatus) {
	n.time = at(s)
	n.tracker.took(&cri.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: n.time.UnixNano(),
		PodSandboxStatus:   &cri.PodSandboxStatus{Id: "sandbox", CreatedAt: at(3.5).UnixNano(), Metadata: &cri.PodSandboxMetadata{Uid: uid}},
		ContainersStatuses: containers})
	n.step(context.Background())
}

func pod(uid string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID(uid)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:1"}}}, Status: corev1.PodStatus{Phase: phase}}
}

func ending(uid string, grace int64, exited time.Time) *corev1.Pod {
	p := pod(uid, corev1.PodRunning)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: start}, &grace
	if !exited.IsZero() {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: exited}}}}}
	}
	return p
}

func container(created, started, exited float64) *cri.ContainerStatus {
	ns := func(s float64) int64 {
		if s == 0 {
			return 0
		}
		return at(s).UnixNano()
	}
	return &cri.ContainerStatus{Metadata: &cri.ContainerMetadata{Name: "app"}, CreatedAt: ns(created), StartedAt: ns(started),
		FinishedAt: ns(exited)}
}

// A pod whose sandbox was requested and that does not run is reported once, 50 s after its beginning, with its marks.
func TestLateCreation(t *testing.T) {
	n := newNode(t)
	logs := filepath.Join(n.host.Files.Root, n.host.Paths.PodLogs, "default_web_"+uid)
	n.saw(0, pod(uid, corev1.PodPending), false)
	if err := os.MkdirAll(logs, 0o700); err != nil {
		t.Fatal(err)
	}
	n.event(4, cri.ContainerEventType_CONTAINER_CREATED_EVENT, "sandbox")
	n.event(4.25, cri.ContainerEventType_CONTAINER_STARTED_EVENT, "sandbox")
	n.event(31, cri.ContainerEventType_CONTAINER_CREATED_EVENT, "c", container(31, 0, 0))
	n.wait(49)
	if len(n.sent) != 0 {
		t.Fatalf("%+v", n.sent)
	}
	n.wait(200)
	n.saw(210, pod(uid, corev1.PodRunning), false)
	if len(n.sent) != 1 || len(n.tracker.acts) != 0 {
		t.Fatalf("%+v", n.sent)
	}
	got := n.sent[0]
	if got.SandboxRequested.IsZero() || got.Stage == "" || got.Text == "" {
		t.Errorf("%+v", got)
	}
	got.SandboxRequested, got.Stage, got.Text = time.Time{}, "", ""
	want := event.Evidence{Act: creation, UID: uid, Namespace: "default", Name: "web", Began: start, SandboxCreated: at(3.5),
		SandboxReady: at(4.25), Containers: []event.Lifetimes{{Name: "app", Created: at(31)}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Pods that are in time are not reported, except for a sample; those of static pods never.
func TestInTime(t *testing.T) {
	n := newNode(t)
	static := pod(sampleU, corev1.PodPending)
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	for _, p := range []*corev1.Pod{pod(uid, corev1.PodPending), pod(sampleU, corev1.PodPending), static} {
		n.saw(0, p, false)
		running := p.DeepCopy()
		running.Status.Phase = corev1.PodRunning
		n.saw(5, running, false)
	}
	if len(n.sent) != 1 || n.sent[0].UID != sampleU || !n.sent[0].Ended.Equal(at(5)) {
		t.Errorf("%+v", n.sent)
	}
	if next := n.step(t.Context()); !next.IsZero() {
		t.Errorf("an idle node wakes at %v", next)
	}
}

// A deletion is late from the end of its containers, or of its grace period.
func TestDeletion(t *testing.T) {
	tests := map[string]struct {
		exited, gone float64
		want         int
	}{
		"in time after a long stop":         {exited: 100, gone: 110, want: 0},
		"late after its containers":         {exited: 10, gone: 31, want: 1},
		"never gone":                        {exited: 10, want: 1},
		"containers do not end":             {want: 1},
		"containers end late, then in time": {exited: 125, gone: 140, want: 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.saw(0, ending(uid, 120, time.Time{}), false)
			exit := time.Time{}
			if tt.exited > 0 {
				exit = at(tt.exited)
				n.wait(tt.exited)
				n.saw(tt.exited, ending(uid, 120, exit), false)
				n.event(tt.exited+0.5, cri.ContainerEventType_CONTAINER_STOPPED_EVENT, "sandbox", container(1, 2, tt.exited))
			}
			if tt.gone > 0 {
				n.wait(tt.gone)
				n.saw(tt.gone, ending(uid, 120, exit), true)
			}
			n.wait(400)
			if len(n.sent) != tt.want {
				t.Fatalf("%+v", n.sent)
			}
			if tt.want > 0 && tt.exited > 0 && (!n.sent[0].SandboxStopped.Equal(at(tt.exited+0.5)) || n.sent[0].Unmounted.IsZero()) {
				t.Errorf("%+v", n.sent[0])
			}
		})
	}
}

// Without events of the runtime, its lists have the marks.
func TestLists(t *testing.T) {
	n := newNode(t)
	n.streaming.Store(false)
	asked := 0
	n.host.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) {
		asked++
		return []*cri.PodSandbox{{Id: "s", CreatedAt: at(2).UnixNano(), Metadata: &cri.PodSandboxMetadata{Uid: uid}}}, nil
	}
	n.host.Runtime.Containers = hosttest.Answer([]*cri.Container{{PodSandboxId: "s", CreatedAt: at(3).UnixNano(),
		Metadata: &cri.ContainerMetadata{Name: "app"}, Labels: map[string]string{"io.kubernetes.pod.uid": uid}}}, nil)
	n.step(t.Context())
	if asked != 0 {
		t.Error("an idle node asks the runtime")
	}
	n.saw(0, pod(uid, corev1.PodPending), false)
	n.wait(60)
	if len(n.sent) != 1 || !n.sent[0].SandboxCreated.Equal(at(2)) || len(n.sent[0].Containers) != 1 || asked > 8 {
		t.Errorf("asked %d times: %+v", asked, n.sent)
	}
}

// Evidence is at most 2 KiB, whatever a node has to say.
func TestBound(t *testing.T) {
	e := event.Evidence{Act: creation, UID: uid, Name: "web"}
	for i := range 300 {
		name := fmt.Sprintf("volumes/kubernetes.io~csi/<%d>/mount", i)
		e.Mounts, e.Findings = append(e.Mounts, name), append(e.Findings, name)
		e.Leftovers, e.Containers = append(e.Leftovers, name), append(e.Containers, event.Lifetimes{Name: name, Created: start})
	}
	data, err := json.Marshal(event.OfEvidence(e, start).Data)
	if err != nil || len(data) > event.MaxEvidence || !json.Valid(data) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// The watch and the runtime's events reach the follower through Run.
func TestRun(t *testing.T) {
	watch, sent := &watched{ready: make(chan struct{})}, make(chan event.Evidence, 1)
	h := hosttest.Host(t)
	h.Runtime.Events = func(ctx context.Context, take func(*cri.ContainerEventResponse)) error {
		<-watch.ready
		watch.follower(pod(sampleU, corev1.PodPending), false)
		take(&cri.ContainerEventResponse{ContainerId: "s", PodSandboxStatus: &cri.PodSandboxStatus{Id: "s", CreatedAt: 1e18,
			Metadata: &cri.PodSandboxMetadata{Uid: sampleU}}})
		watch.follower(pod(sampleU, corev1.PodRunning), false)
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- New(h, watch, func(e event.Evidence) { sent <- e }).Run(ctx) }()
	if e := <-sent; e.SandboxCreated.UnixNano() != 1e18 {
		t.Errorf("%+v", e)
	}
	cancel()
	if err := <-done; err != nil || watch.follower != nil {
		t.Errorf("%v, or the watch is still followed", err)
	}
}

type watched struct {
	pods
	ready chan struct{}
}

func (w *watched) Follow(follower func(*corev1.Pod, bool)) {
	if w.pods.Follow(follower); follower != nil {
		close(w.ready)
	}
}

// BenchmarkStep is one look at 60 pods that start, each 10 s: on an idle node there is none.
func BenchmarkStep(b *testing.B) {
	n := newNode(b)
	n.streaming.Store(false)
	var sandboxes []*cri.PodSandbox
	var containers []*cri.Container
	for i := range 60 {
		id := fmt.Sprintf("3f1c5a80-0000-4000-8000-%012d", i)
		n.tracker.saw(pod(id, corev1.PodPending), false, n.time)
		sandboxes = append(sandboxes, &cri.PodSandbox{Id: id, CreatedAt: 1e18, Metadata: &cri.PodSandboxMetadata{Uid: id}})
		for j := range 2 {
			containers = append(containers, &cri.Container{PodSandboxId: id, CreatedAt: 1e18, Metadata: &cri.ContainerMetadata{Name: fmt.Sprint(j)},
				Labels: map[string]string{"io.kubernetes.pod.uid": id}})
		}
	}
	n.host.Runtime.Sandboxes, n.host.Runtime.Containers = hosttest.Answer(sandboxes, nil), hosttest.Answer(containers, nil)
	for b.Loop() {
		n.step(b.Context())
	}
}
