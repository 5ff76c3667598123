package verdict

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Any state: witnesses that answer or not, pods known or not, gates open or not, any history, any settings.

var drawUID = rapid.SampledFrom([]string{living, dead, other, static, ""})

// rare is true in one of 32 draws. Rapid's numbers are not evenly distributed, its coins are.
func rare(t *rapid.T, label string) bool {
	for range 5 {
		if !rapid.Bool().Draw(t, label) {
			return false
		}
	}
	return true
}

func drawError(t *rapid.T, label string) error {
	if rare(t, label) {
		return errors.New(label)
	}
	return nil
}

func drawResponse(t *rapid.T, label string) witness.Response {
	return witness.Response{Asked: !rare(t, label+" asked"), At: inspecttest.Hour, Err: drawError(t, label)}
}

func drawPods(t *rapid.T, label string) map[string]witness.PodFact {
	pods := make(map[string]witness.PodFact)
	if !rare(t, label+" lack the living") {
		pods[living] = inspecttest.Pod(living, "web")
	}
	for _, uid := range rapid.SliceOfN(drawUID, 0, 3).Draw(t, label) {
		if uid != "" {
			pods[uid] = witness.PodFact{Pod: object.Pod{UID: uid}, Static: uid == static, Mirror: uid == static}
		}
	}
	return pods
}

func drawOften(t *rapid.T, label string) bool { return !rare(t, label) }

func drawAge(t *rapid.T, label string) time.Duration {
	return rapid.SampledFrom([]time.Duration{time.Hour, time.Hour, 24 * time.Hour, time.Minute}).Draw(t, label)
}

func drawTruth(t *rapid.T) witness.Inventory {
	inventory := inspecttest.Healthy()
	if rapid.Bool().Draw(t, "all is well") {
		return inventory
	}
	inventory.Runtime.Response = drawResponse(t, "runtime")
	inventory.Runtime.Ready.OK = drawOften(t, "ready")
	inventory.Runtime.NetReady.OK = drawOften(t, "network ready")
	inventory.Runtime.Age, inventory.Runtime.AgeErr = drawAge(t, "runtime age"), drawError(t, "runtime process")
	if rapid.Bool().Draw(t, "runtime knows") {
		inventory.Runtime.Sandboxes[sandbox] = witness.SandboxFact{ID: sandbox}
	}
	inventory.Containerd.Response = drawResponse(t, "containerd")
	if rapid.Bool().Draw(t, "containerd knows") {
		inventory.Containerd.Known[sandbox] = "lease"
	}
	inventory.Kubelet.Response = drawResponse(t, "kubelet")
	inventory.Kubelet.Pods = drawPods(t, "kubelet's pods")
	if rare(t, "kubelet was asked again") {
		inventory.Kubelet.Again = drawPods(t, "kubelet's pods, asked again")
	}
	inventory.Kubelet.Age, inventory.Kubelet.AgeErr = drawAge(t, "kubelet age"), drawError(t, "kubelet process")
	inventory.Kubelet.Working, inventory.Kubelet.WorkingErr = rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1}).Draw(t,
		"working"),
		drawError(t, "metric")
	inventory.Cluster.Response = drawResponse(t, "apiserver")
	inventory.Cluster.Pods = drawPods(t, "apiserver's pods")
	inventory.Cluster.Comparison = witness.Compare(inventory.Cluster.Pods, inventory.Kubelet.Pods,
		inventory.Runtime.Running)
	inventory.Cluster.NodeErr = drawError(t, "node")
	inventory.Cluster.Boot = rapid.SampledFrom([]string{"b", "b", "b", "b", "b", "x", ""}).Draw(t, "bootID")
	inventory.Static.Err = drawError(t, "manifests")
	inventory.Removed = map[string]bool{dead: rapid.Bool().Draw(t, "its directory was removed")}
	if rapid.Bool().Draw(t, "refused") {
		drawNames(t, &inventory)
	}
	return inventory
}

// drawNames makes kubelet know names only.
func drawNames(t *rapid.T, inventory *witness.Inventory) {
	inventory.Kubelet.Pods, inventory.Kubelet.Refused = nil, inspecttest.ErrRefused
	inventory.Kubelet.Names = map[string]int{"default/web": 1}
	if rare(t, "kubelet has another pod of that name") {
		inventory.Kubelet.Names["default/gone"] = rapid.IntRange(1, 2).Draw(t, "times")
	}
	inventory.Kubelet.HealthErr = drawError(t, "healthz")
	inventory.Kubelet.Record, inventory.Kubelet.RecordErr = living, drawError(t, "record")
	inventory.Runtime.Running = map[string]bool{living: true, dead: rare(t, "runs")}
	inventory.Runtime.Pods[living] = witness.SandboxFact{Pod: inspecttest.Pod(living, "web").Pod, ID: "web", State: "READY"}
	inventory.Cluster.Comparison = inventory.CompareNames(inventory.Cluster.Pods)
}

func drawSettings(t *rapid.T) object.Settings {
	if rapid.Bool().Draw(t, "zero settings") {
		return object.Settings{HostNamespaces: true, MassOrphaning: 100}
	}
	s := inspecttest.Settings()
	s.HostNamespaces = drawOften(t, "host namespaces")
	return s
}

func drawObject(t *rapid.T) object.Object {
	o := inspecttest.Object(rapid.SampledFrom(kinds.Kinds()).Draw(t, "kind"), drawUID.Draw(t, "uid"))
	if o.Pod.UID == dead && rapid.Bool().Draw(t, "named") {
		o.Pod = object.Pod{UID: dead, Namespace: "default", Name: "gone"}
	}
	o.ID = rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "id")
	o.Identity.File.Inode = rapid.SampledFrom([]uint64{7, 8}).Draw(t, "inode")
	o.Foreign = rapid.SampledFrom([]string{"", "", "", "created by hand"}).Draw(t, "foreign")
	o.Doubt = rapid.SampledFrom([]string{"", "", "", "cannot tell"}).Draw(t, "doubt")
	return o
}

func drawObjects(t *rapid.T) []object.Object {
	objects := rapid.SliceOfN(rapid.Custom(drawObject), 1, 6).Draw(t, "objects")
	seen := make(map[string]bool)
	var unique []object.Object
	for _, o := range objects {
		if !seen[object.Key(&o)] {
			unique = append(unique, o)
		}
		seen[object.Key(&o)] = true
	}
	return unique
}

func drawHistory(t *rapid.T, objects []object.Object) object.History {
	history := seenLong(objects...)
	for k := range history {
		if rapid.IntRange(0, 3).Draw(t, "forget "+k) == 0 {
			delete(history, k)
		}
	}
	return history
}

// world is a drawn world and its evaluation.
type world struct {
	objects   []object.Object
	inventory witness.Inventory
	history   object.History
	settings  object.Settings
	report    object.Report
	next      object.History
}

func drawWorld(t *rapid.T) world {
	w := world{objects: drawObjects(t), inventory: drawTruth(t), settings: drawSettings(t)}
	w.history = drawHistory(t, w.objects)
	w.report, w.next = Evaluate(w.objects, w.inventory, w.history, w.settings, inspecttest.Hour)
	return w
}

func TestEvaluateProperties(t *testing.T) {
	leftovers, byNames := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for _, o := range w.report.Objects {
			if o.Verdict == "" || o.Why == "" {
				t.Fatalf("%s %s: verdict %q, why %q", o.Kind, o.ID, o.Verdict, o.Why)
			}
			if o.Verdict == object.Leftover {
				leftovers++
				byNames += min(1, len(w.report.Notes))
				checkLeftover(t, w, o)
			}
		}
	})
	t.Logf("%d leftovers, %d of them by name", leftovers, byNames)
	if leftovers == 0 {
		t.Error("no leftover in any world: this test proves nothing")
	}
}

// checkLeftover checks a leftover against all necessary conditions.
func checkLeftover(t *rapid.T, w world, o object.Assessment) {
	for name, response := range map[string]witness.Response{
		"apiserver": w.inventory.Cluster.Response, "kubelet": w.inventory.Kubelet.Response,
		"runtime": w.inventory.Runtime.Response, "containerd": w.inventory.Containerd.Response,
	} {
		if !response.OK() {
			t.Fatalf("leftover %s although %s did not answer", o.ID, name)
		}
	}
	for _, g := range w.report.Gates {
		if !g.Open && (g.Name != "network-ready" || o.Kind.Networked()) {
			t.Fatalf("leftover %s although gate %s is closed", o.ID, g.Name)
		}
	}
	if _, ok := w.inventory.Cluster.Pods[o.Pod.UID]; ok {
		t.Fatalf("leftover %s of pod %s that the apiserver knows", o.ID, o.Pod.UID)
	}
	if _, ok := w.inventory.Kubelet.Pods[o.Pod.UID]; ok {
		t.Fatalf("leftover %s of pod %s that kubelet knows", o.ID, o.Pod.UID)
	}
	if _, ok := w.inventory.Kubelet.Again[o.Pod.UID]; ok && !w.inventory.Kubelet.ByName() {
		t.Fatalf("leftover %s of pod %s that kubelet knew when it was asked again", o.ID, o.Pod.UID)
	}
	if o.Pod.UID == "" || o.Foreign != "" || o.Doubt != "" {
		t.Fatalf("leftover %+v", o.Object)
	}
	deadLease := slices.ContainsFunc(w.report.Objects, func(o object.Assessment) bool {
		return o.Kind == object.Lease && o.Verdict == object.Leftover
	})
	if o.Kind.Networked() && (len(w.inventory.Runtime.Sandboxes) > 0 || len(w.inventory.Containerd.Known) > 0 &&
		!deadLease) {
		t.Fatalf("leftover %s of a sandbox that the runtime or containerd knows", o.ID)
	}
	s := w.next[object.Key(&o.Object)]
	if w.inventory.Kubelet.ByName() && (o.Running || len(o.Pod.UID) == 32 ||
		inspecttest.Hour.Since(s.First) < 2*w.settings.Grace ||
		w.inventory.Kubelet.Names[witness.FullName(o.Pod)] > 0) {
		t.Fatalf("leftover %s of a pod that kubelet may have: %+v", o.ID, o.Object)
	}
	if s.Passes < w.settings.Passes || inspecttest.Hour.Since(s.First) < w.settings.Grace || len(s.Denials) == 0 ||
		s.Denials[len(s.Denials)-1].Since(s.Denials[0]) < w.settings.ListSpacing {
		t.Fatalf("leftover %s on the strength of %+v", o.ID, s)
	}
}

func TestEvaluateIsPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		report, next := Evaluate(w.objects, w.inventory, w.history, w.settings, inspecttest.Hour)
		if diff := cmp.Diff(w.report, report); diff != "" {
			t.Fatal(diff)
		}
		if diff := cmp.Diff(w.next, next); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestHistoryRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		data, err := json.Marshal(w.next)
		if err != nil {
			t.Fatal(err)
		}
		restored := make(object.History)
		if err := json.Unmarshal(data, &restored); err != nil {
			t.Fatal(err)
		}
		want, wantNext := Evaluate(w.objects, w.inventory, w.next, w.settings, inspecttest.At(2*time.Hour))
		got, gotNext := Evaluate(w.objects, w.inventory, restored, w.settings, inspecttest.At(2*time.Hour))
		if diff := cmp.Diff(want, got) + cmp.Diff(wantNext, gotNext); diff != "" {
			t.Fatal(diff)
		}
	})
}

// A pass in which a witness is away must never bring an object closer to being a leftover than one in which it answers.
func TestNoAnswerIsNoDenial(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		silenced, away := w.inventory, witness.Response{Asked: true, At: inspecttest.Hour, Err: errors.New("away")}
		switch rapid.IntRange(0, 3).Draw(t, "who") {
		case 0:
			silenced.Kubelet.Response = away
		case 1:
			silenced.Cluster.Response = away
		case 2:
			silenced.Runtime.Response = away
		case 3:
			silenced.Containerd.Response = away
		}
		report, _ := Evaluate(w.objects, silenced, w.history, w.settings, inspecttest.Hour)
		for _, o := range report.Objects {
			if o.Verdict == object.Leftover || o.Verdict == object.Candidate {
				t.Fatalf("%s is a %s: %s", o.ID, o.Verdict, o.Why)
			}
		}
	})
}
