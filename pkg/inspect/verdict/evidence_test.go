package verdict

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// DrawEvidence draws any evidence, including errors of every kind.
func DrawEvidence(t *rapid.T) Evidence {
	w := drawWorld(t)
	e := Evidence{Objects: w.objects, Inventory: w.inventory, History: w.history, Settings: w.settings,
		Now:      inspecttest.Hour,
		Failures: []object.Failure{{What: "mount", Error: "EIO"}}}
	for i := range e.Objects { // names that are also other words
		word := rapid.SampledFrom([]string{"web", "x", "y", "api", "mount", "sandbox", "7"})
		e.Objects[i].Pod.Namespace, e.Objects[i].Pod.Name = word.Draw(t, "namespace"), word.Draw(t, "name")
	}
	if rapid.Bool().Draw(t, "a pod runs that only the apiserver has, by name") {
		e.Inventory.Runtime.Running = map[string]bool{dead: true}
		e.Inventory.Runtime.Pods[dead] = witness.SandboxFact{Pod: object.Pod{UID: dead, Namespace: "n", Name: "p"},
			State: "READY"}
		e.Inventory.Named = map[string]object.NameAnswer{dead: {At: inspecttest.Hour, Alive: true, Why: "it has it"}}
	}
	if rapid.Bool().Draw(t, "kubelet counts") {
		return e
	}
	e.Inventory.Kubelet.WorkingErr = rapid.SampledFrom([]error{witness.ErrNoMetric,
		fmt.Errorf("kubelet's metrics: %w", hosterr.ErrNotConfigured)}).Draw(t, "why not")
	e.Inventory.Kubelet.Version = rapid.SampledFrom([]string{"", "v1.26.1", "v1.30.0"}).Draw(t, "version")
	for i := range e.Objects {
		e.Objects[i].InUse = rapid.SampledFrom([]string{"", "", "a task"}).Draw(t, "in use")
	}
	return e
}

func TestEvidenceRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := DrawEvidence(t)
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var restored Evidence
		if err := json.Unmarshal(data, &restored); err != nil {
			t.Fatal(err)
		}
		want, wantNext := e.Evaluate()
		got, gotNext := restored.Evaluate()
		if diff := cmp.Diff(want, got) + cmp.Diff(wantNext, gotNext); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestLivingObjectsDecideNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := DrawEvidence(t)
		report, _ := e.Evaluate()
		less, _ := e.WithoutLiving()
		got, _ := less.Evaluate()
		if diff := cmp.Diff(report.Gates, got.Gates); diff != "" {
			t.Fatal(diff)
		}
		verdicts := make(map[string]string)
		for _, o := range got.Objects {
			verdicts[object.Key(&o.Object)] = string(o.Verdict) + o.Why
		}
		for _, o := range report.Objects {
			if v, kept := verdicts[object.Key(&o.Object)]; kept && v != string(o.Verdict)+o.Why ||
				!kept && o.Verdict != object.Live && o.Verdict != object.Foreign {
				t.Fatalf("%s: %s %s, without the living: %q", o.ID, o.Verdict, o.Why, v)
			}
		}
	})
}

// Each error of an inventory is recorded: JSON cannot represent it by itself.
func TestEveryErrorIsRecorded(t *testing.T) {
	var inventory witness.Inventory
	recorded := make(map[*error]bool)
	for _, field := range inventoryErrors(&inventory) {
		recorded[field] = true
	}
	var walk func(v reflect.Value, name string)
	walk = func(v reflect.Value, name string) {
		if field, ok := v.Addr().Interface().(*error); ok && !recorded[field] {
			t.Errorf("inventoryErrors lacks %s", name)
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() {
				continue // derived by Evaluate
			}
			if f := v.Field(i); f.Kind() == reflect.Struct && field.Type != reflect.TypeFor[finding.Timestamp]() {
				walk(f, name+"."+field.Name)
			} else if e, ok := f.Addr().Interface().(*error); ok && !recorded[e] {
				t.Errorf("inventoryErrors lacks %s.%s", name, field.Name)
			}
		}
	}
	walk(reflect.ValueOf(&inventory).Elem(), "Inventory")
}

func TestRecordedErrorKeepsItsKind(t *testing.T) {
	for name, err := range recordedKinds() {
		recorded := RecordError(fmt.Errorf("ask it: %w", err))
		if !errors.Is(recorded, err) || recorded.Error() != "ask it: "+err.Error() {
			t.Errorf("%s: %v", name, recorded)
		}
		if recorded = RecordError(errors.New(err.Error())); errors.Is(recorded, err) {
			t.Errorf("%s: another error with the same text", name)
		}
	}
}

func TestEvidenceOfAnotherVersionIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"a field":               `{"objects":[],"witness":1}`,
		"a field of an object":  `{"objects":[{"kind":"mount","colour":1}]}`,
		"an error":              `{"objects":[],"errors":{"moon":{"text":"x"}}}`,
		"no list":               `{"objects":{}}`,
		"a part of the answers": `{"objects":[],"inventory":{"Moon":{}}}`,
	} {
		if err := json.Unmarshal([]byte(text), new(Evidence)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	many := `{"objects":[` + strings.TrimSuffix(strings.Repeat("{},", maxObjects+1), ",") + `]}`
	if err := json.Unmarshal([]byte(many), new(Evidence)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("any number of objects: %v", err)
	}
}
