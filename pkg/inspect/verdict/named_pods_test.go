package verdict

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

func TestEvaluateByName(t *testing.T) {
	gone, nameless := named(dead, "gone"), inspecttest.Object(object.PodDirectory, dead)
	tests := []struct {
		name   string
		object object.Object
		since  time.Duration // time since it was first seen; 30 minutes unless set
		bend   func(*witness.Inventory, object.History)
		want   object.Verdict
		why    string // part of it
	}{
		{"kubelet lacks the name", gone, 0, nil, object.Leftover, "seen in 6 passes over 30m0s"},
		{"kubelet has the pod", named(living, "web"), 0, nil, object.Live, "kubelet has its pod"},
		{"it has ended: only the apiserver has it", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Cluster.Pods[dead] = witness.PodFact{Pod: gone.Pod, Phase: "Succeeded"}
		}, object.Live, "the apiserver has its pod"},
		{"twice the grace period", gone, 20 * time.Minute, nil, object.Leftover, ""},
		{"less than twice the grace period", gone, 19 * time.Minute, nil, object.Candidate, "1m0s of 20m0s remaining"},
		{"less than twice its own", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Runtime.Grace[dead] = 20 * time.Minute
		}, object.Candidate, "10m0s of 40m0s remaining"},
		{"the denials are not a grace period apart", gone, 0, func(_ *witness.Inventory, h object.History) {
			s := h[object.Key(&gone)]
			s.Denials = []finding.Timestamp{inspecttest.At(51 * time.Minute)}
			h[object.Key(&gone)] = s
		}, object.Candidate, "deny it twice, at least 10m0s apart"},
		{"it runs", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Runtime.Running[dead] = true
		}, object.Candidate, "it is running, and only kubelet's /pods would show"},
		{"it is READY, but nothing runs", gone, 0, func(t *witness.Inventory, _ object.History) {
			sandboxOf(t, dead, "gone", "READY")
		}, object.Leftover, ""},

		{"kubelet has the name, and nothing is known of it", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Names["default/gone"] = 1
		}, object.Candidate, "nothing shows that it is another one"},
		{"kubelet has the name, and its sandbox", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Names["default/gone"] = 1
			sandboxOf(t, dead, "gone", "READY")
		}, object.Live, "kubelet has its pod"},
		{"kubelet has the name, and there are two sandboxes", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Names["default/gone"] = 1
			sandboxOf(t, dead, "gone", "READY")
			sandboxOf(t, other, "gone", "READY")
		}, object.Candidate, "nothing shows that it is another one"},
		{"another pod has the name, by its sandbox", gone, 0, func(t *witness.Inventory, _ object.History) {
			replaced(t, false)
			sandboxOf(t, other, "gone", "READY")
		}, object.Leftover, ""},
		{"another pod has the name, by its status", gone, 0, func(t *witness.Inventory, _ object.History) {
			replaced(t, true)
		}, object.Leftover, ""},
		{"... although the old sandbox is READY", gone, 0, func(t *witness.Inventory, _ object.History) {
			replaced(t, true)
			sandboxOf(t, dead, "gone", "READY")
		}, object.Leftover, ""},
		{"... but the list is older", gone, 0, func(t *witness.Inventory, _ object.History) {
			replaced(t, true)
			t.Cluster.At = inspecttest.At(29 * time.Minute)
		}, object.Candidate, "nothing shows that it is another one"},
		{"... but the list is older, and its sandbox READY", gone, 0, func(t *witness.Inventory, _ object.History) {
			replaced(t, true)
			sandboxOf(t, dead, "gone", "READY")
			t.Cluster.At = inspecttest.At(29 * time.Minute)
		}, object.Live, "kubelet has its pod"},
		{"another pod has the name, but kubelet may not have it", gone, 0, func(t *witness.Inventory, _ object.History) {
			replaced(t, false)
		}, object.Candidate, "nothing shows that it is another one"},
		{"another pod has the name, but its sandbox is not READY", gone, 0, func(t *witness.Inventory, _ object.History) {
			replaced(t, false)
			sandboxOf(t, other, "gone", "NOTREADY")
		}, object.Candidate, "nothing shows that it is another one"},
		{"another pod has the name, and kubelet two of it", gone, 0, func(t *witness.Inventory, _ object.History) {
			replaced(t, true)
			t.Kubelet.Names["default/gone"] = 2
		}, object.Candidate, "nothing shows that it is another one"},
		{"its sandboxes have two names", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Runtime.Misnamed = map[string]bool{dead: true}
		}, object.Candidate, "its sandboxes have different pod names"},

		{"no name, and each of kubelet's is another's", nameless, 0, nil, object.Leftover, ""},
		{"no name, less than three grace periods", nameless, 29 * time.Minute, nil, object.Candidate,
			"1m0s of 30m0s remaining"},
		{"no name, and one of kubelet's is nobody's", nameless, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Names["default/new"] = 1
		}, object.Candidate, "which pod default/new of kubelet's is"},
		{"no name, and one of kubelet's has only a sandbox", nameless, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Names["default/new"] = 1
			sandboxOf(t, other, "new", "READY")
		}, object.Candidate, "which pod default/new of kubelet's is"},
		{"no name, and an older list", nameless, 0, func(t *witness.Inventory, _ object.History) {
			t.Cluster.At = inspecttest.At(29 * time.Minute)
		}, object.Candidate, "has not been asked since it was first seen"},

		{"kubelet's record names it", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Record += dead
		}, object.Candidate,
			"it may be a pod that has ended, which kubelet's podresources lack: kubelet's allocated_pods_state " +
				"still names it"},
		{"kubelet's record names it, and it has no name", nameless, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Record += dead
		}, object.Candidate, "still names it"},
		{"kubelet has no record", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Record, t.Kubelet.RecordErr = "", fs.ErrNotExist
		}, object.Candidate, "kubelet's record of its pods: file does not exist"},
		{"kubelet's record is an old one", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Record = other
		}, object.Candidate, "is not current: it lacks the pod default/web"},
		{"an old kubelet lists pods that have ended", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Record, t.Kubelet.RecordErr, t.Cluster.Version = "", fs.ErrNotExist, "v1.33.9"
		}, object.Leftover, ""},
		{"a kubelet of unknown version", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Record, t.Kubelet.RecordErr, t.Cluster.Version = "", fs.ErrNotExist, ""
		}, object.Candidate, "kubelet's record of its pods"},

		{"static, by its UID", named(static, "etcd-n"), 0, nil, object.Unknown, "a static pod, whose UID only"},
		{"static, by its sandbox", gone, 0, func(t *witness.Inventory, _ object.History) {
			sandboxOf(t, dead, "gone", "NOTREADY")
			s := t.Runtime.Pods[dead]
			s.Source = "file"
			t.Runtime.Pods[dead] = s
		}, object.Unknown, "a static pod, whose UID only"},
		{"its UID is in a manifest", nameless, 0, func(t *witness.Inventory, _ object.History) {
			t.Static.UIDs = map[string]string{dead: "x.yaml"}
		}, object.Live, "x.yaml sets this UID"},
		{"kubelet is sick", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.HealthErr = errors.New("syncloop")
		}, object.Unknown,
			"kubelet-not-working is closed: its metrics are refused, and it is not known to be healthy: syncloop"},
		{"kubelet tells that it works", gone, 20 * time.Minute, func(t *witness.Inventory, _ object.History) {
			t.Kubelet.Working, t.Kubelet.WorkingErr = 1, nil
		}, object.Candidate, "kubelet is still terminating 1 pods"},
		{"the list does not share a pod", gone, 0, func(t *witness.Inventory, _ object.History) {
			t.Cluster.Shared = 0
		}, object.Unknown, "gate list-is-ours"},
		{"the apiserver is away", nameless, 0, func(t *witness.Inventory, _ object.History) {
			t.Cluster.Err = errors.New("away")
		}, object.Unknown, "gate apiserver-heard"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inventory, history := inspecttest.ByName(), seenLong(test.object)
			for k, s := range history {
				s.First = inspecttest.At(time.Hour - max(test.since, 30*time.Minute))
				if test.since != 0 {
					s.First = inspecttest.At(time.Hour - test.since)
				}
				history[k] = s
			}
			inventory.Cluster.Pods[living] = witness.PodFact{Pod: inspecttest.Pod(living, "web").Pod, Phase: "Running",
				Started: true}
			if test.bend != nil {
				test.bend(&inventory, history)
			}
			report, next := Evaluate([]object.Object{test.object}, inventory, history, inspecttest.Settings(),
				inspecttest.Hour)
			got := report.Objects[0]
			if got.Verdict != test.want || !strings.Contains(got.Why, test.why) {
				t.Errorf("%s: %s\n%v", got.Verdict, got.Why, got.Witnesses)
			}
			if _, kept := next[object.Key(&test.object)]; kept && inventory.Runtime.Running[dead] {
				t.Error("the time in which it runs counts")
			}
			if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "system:node:n") {
				t.Errorf("notes: %q", report.Notes)
			}
		})
	}
}
