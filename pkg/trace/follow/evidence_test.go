package follow

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

func evidenceOf(act string, change func(*event.Evidence)) event.Evidence {
	e := event.Evidence{Act: act, UID: "uid-a", Namespace: "default", Name: "a", Began: second(2)}
	change(&e)
	return e
}

// Evidence explains the open stage at the deadline.
func TestEvidenceExplains(t *testing.T) {
	volumes := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}}
	}
	ends := func(p *corev1.Pod) {
		readyAt(3)(p)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: second(110)}, new(int64(10))
	}
	ended := func(p *corev1.Pod) {
		ends(p)
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: second(105)}}}
	}
	waits := func(is, text string, more func(*event.Evidence)) func(*event.Evidence) {
		return func(e *event.Evidence) {
			e.Stage, e.Text = is, text
			if more != nil {
				more(e)
			}
		}
	}
	stopped := func(e *event.Evidence) { e.SandboxStopped = second(106) }
	tests := map[string]struct {
		act      string
		pod      func(*corev1.Pod)
		says     func(*event.Evidence)
		want     string
		wantText string
		stage    stage.ID
	}{
		"no evidence": {act: "creation", pod: volumes, want: "MountSlow", stage: stage.Sandbox},
		"mounts": {act: "creation", pod: volumes, says: waits("volumes", "waits for volumes: v", nil), want: "MountSlow",
			wantText: "waits for volumes: v", stage: stage.Mount},
		"mounted": {act: "creation", pod: volumes, says: waits("sandbox", "CNI hangs", func(e *event.Evidence) { e.SandboxRequested = second(5) }),
			want: "SandboxFailed", wantText: "CNI hangs", stage: stage.Sandbox},
		"driver": {act: "creation", pod: volumes, says: waits("volumes", "", func(e *event.Evidence) {
			e.Findings = []string{"dns/X/Node/n", "csi-registration/DriverMissing/csi/d"}
		}), want: "CSIDriverMissing", wantText: "DriverMissing/csi/d", stage: stage.Mount},
		"read-only": {act: "creation", pod: func(*corev1.Pod) {}, says: waits("sandbox", "", func(e *event.Evidence) {
			e.Findings = []string{"filesystem-readonly/R/fs//var"}
		}), want: "NodeReadOnly", wantText: "R/fs//var", stage: stage.Sandbox},
		"unkillable":         {act: "deletion", pod: ends, says: waits("blocked", "sh (7) in nfs_wait", nil), want: "ContainerUnkillable", wantText: "sh (7) in nfs_wait", stage: stage.Stop},
		"gone, no evidence":  {act: "deletion", pod: ended, want: "GoneNotReported", wantText: "n", stage: stage.Disappear},
		"sandbox stays":      {act: "deletion", pod: ended, says: waits("sandbox", "CNI DEL", nil), want: "SandboxStopFailed", wantText: "CNI DEL", stage: stage.StopSandbox},
		"mounted still":      {act: "deletion", pod: ended, says: waits("volumes", "v (nfs)", stopped), want: "UnmountStuck", wantText: "v (nfs)", stage: stage.Unmount},
		"processes still":    {act: "deletion", pod: ended, says: waits("processes", "x (1)", stopped), want: "CgroupStuck", wantText: "x (1)", stage: stage.Unmount},
		"nothing is left":    {act: "deletion", pod: ended, says: waits("release", "", func(e *event.Evidence) { stopped(e); e.Unmounted = second(107) }), want: "GoneNotReported", wantText: "n", stage: stage.Disappear},
		"held by finalizers": {act: "deletion", pod: func(p *corev1.Pod) { ended(p); p.Finalizers = []string{"x/y"} }, says: waits("finalizers", "", stopped), want: "FinalizerHeld", wantText: "x/y", stage: stage.Finalizers},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(Config{})
			deadline := 60.0
			if tt.act == "deletion" {
				w.shows(newPod("a", readyAt(3)), 3)
				w.shows(newPod("a", ends), 100)
				w.shows(newPod("a", tt.pod), 105)
				killing := corev1.Event{Reason: "Killing", InvolvedObject: corev1.ObjectReference{UID: "uid-a"}}
				if name == "unkillable" {
					w.Event(&killing, false, second(105))
				}
				deadline = 160
			} else {
				w.shows(newPod("a", bound, tt.pod), 2)
			}
			w.until(deadline - 8)
			if tt.says != nil && !w.Evidence(evidenceOf(tt.act, tt.says), "n", second(w.now)) {
				t.Fatal("ignored")
			}
			w.until(deadline + 40)
			got := w.judged[len(w.judged)-1]
			if string(got.First.Reason) != tt.want || got.First.Detail != tt.wantText || got.First.Stage != tt.stage {
				t.Errorf("%s: %+v", w.outcomes(), got.First)
			}
		})
	}
}

// With the node's marks mount, sandbox and the start of a container have times of their own.
func TestEvidenceMarks(t *testing.T) {
	w := newWorld(Config{})
	w.shows(newPod("a", bound), 2)
	w.shows(newPod("a", readyAt(58)), 58)
	w.Evidence(evidenceOf("creation", func(e *event.Evidence) {
		e.SandboxRequested, e.SandboxReady = second(12.5), second(42.5)
		e.Containers = []event.Lifetimes{{Name: "c", Created: second(48)}, {Name: "of another pod", Created: second(47)}}
	}), "n", second(58))
	w.until(90)
	spent := map[stage.ID]time.Duration{}
	for _, s := range stage.Of(&w.judged[0].Timeline, second(90)) {
		spent[s.ID] = s.Spent.Middle().Round(time.Second)
	}
	for id, want := range map[stage.ID]time.Duration{stage.Mount: 11 * time.Second, stage.Sandbox: 30 * time.Second, stage.Start: 10 * time.Second} {
		if d := spent[id] - want; d.Abs() > time.Second {
			t.Errorf("%s: %v", id, spent)
		}
	}
	if got := stage.In(&w.judged[0].Timeline, stage.Sandbox).Name; got != "sandbox and network" {
		t.Error(got)
	}
	if got := w.judged[0].Verdict.Judged.Middle(); got != 56*time.Second {
		t.Errorf("evidence has changed the verdict: %v", got)
	}
}

// Evidence that cannot be true changes nothing, and is counted. The clock of its node is measured.
func TestEvidenceIgnored(t *testing.T) {
	far := func(s float64) func(*event.Evidence) {
		return func(e *event.Evidence) { e.SandboxRequested = second(s) }
	}
	tests := map[string]struct {
		node string
		e    event.Evidence
		want bool
	}{
		"true":            {"n", evidenceOf("creation", far(20)), true},
		"another node":    {"m", evidenceOf("creation", far(20)), false},
		"another act":     {"n", evidenceOf("deletion", far(20)), false},
		"unknown act":     {"n", evidenceOf("", far(20)), false},
		"before the act":  {"n", evidenceOf("creation", far(-60)), false},
		"in the future":   {"n", evidenceOf("creation", far(300)), false},
		"unknown pod":     {"n", evidenceOf("creation", func(e *event.Evidence) { e.UID = "x" }), false},
		"another name":    {"n", evidenceOf("creation", func(e *event.Evidence) { e.Name = "x" }), false},
		"container early": {"n", evidenceOf("creation", func(e *event.Evidence) { e.Containers = []event.Lifetimes{{Name: "c", Created: second(-60)}} }), false},
	}
	for name, tt := range tests {
		for _, ahead := range []time.Duration{0, 5 * time.Minute} {
			w := newWorld(Config{})
			w.shows(newPod("other", bound, is(corev1.PodReadyToStartContainers, 1+ahead.Seconds())), 1)
			w.shows(newPod("a", bound), 2)
			w.until(30)
			e := tt.e
			if !e.SandboxRequested.IsZero() {
				e.SandboxRequested = e.SandboxRequested.Add(ahead)
			}
			if got := w.Evidence(e, tt.node, second(30)); got != tt.want {
				t.Errorf("%s, %v ahead: %v", name, ahead, got)
			}
			if c := w.Counts(); c.Evidence+c.EvidenceIgnored != 1 || tt.want != (c.Evidence == 1) {
				t.Errorf("%s: %+v", name, c)
			}
			set := w.Find("uid-a", "", "")[0].Timeline.At(record.Mounted)
			if set.Known() != tt.want {
				t.Errorf("%s: %+v", name, set)
			}
			if late := set.Arrival.Sub(second(20)).Abs(); tt.want && late > 2*time.Second {
				t.Errorf("%s, %v ahead: %v off", name, ahead, late)
			}
		}
	}
}
