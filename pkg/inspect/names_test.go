package inspect

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// namespaces returns the reported namespace of a pod's objects, by kind.
func namespaces(report object.Report, uid string) map[object.Kind]string {
	named := make(map[object.Kind]string)
	for _, o := range report.Objects {
		if o.Pod.UID == uid {
			named[o.Kind] = o.Pod.Namespace
		}
	}
	return named
}

// A directory shows only a UID. Its namespace is known while a sandbox has it, and is remembered after that.
func TestNamespaceIsRemembered(t *testing.T) {
	n := newNode(t)
	n.PodDir(dead)
	n.Sandbox(dead, deadSandbox)
	i := n.inspector()
	report, history := i.Pass(t.Context(), nil)
	want := map[object.Kind]string{object.Sandbox: "default", object.Container: "default", object.Lease: "default",
		object.PodDirectory: "default"}
	if diff := cmp.Diff(want, namespaces(report, dead)); diff != "" {
		t.Error(diff)
	}
	n.Sandboxes, n.Containers, n.Records = nil, nil, nil
	want = map[object.Kind]string{object.Lease: "default", object.PodDirectory: "default"}
	for range 2 {
		n.After(time.Minute)
		report, history = i.Pass(t.Context(), history)
		if diff := cmp.Diff(want, namespaces(report, dead)); diff != "" {
			t.Error(diff)
		}
	}
	n.Leases = nil // only the history names it now
	n.After(time.Minute)
	report, history = i.Pass(t.Context(), history)
	if diff := cmp.Diff(map[object.Kind]string{object.PodDirectory: "default"}, namespaces(report, dead)); diff != "" {
		t.Error(diff)
	}
	n.PodDir(dead, "volumes") // another object of the pod, not seen with the sandbox
	fresh := []object.Object{{Kind: object.Mount, ID: "m", Pod: object.Pod{UID: dead}}, {Kind: object.Mount,
		ID: "other", Pod: object.Pod{UID: living}},
		{Kind: object.Netns, ID: "untied"}}
	addNames(fresh, history)
	for _, o := range fresh {
		if want := map[string]string{"m": "default"}[o.ID]; o.Pod.Namespace != want {
			t.Errorf("%s: namespace %q, want %q", o.ID, o.Pod.Namespace, want)
		}
	}
	if fresh[2].Pod != (object.Pod{}) {
		t.Errorf("an object of no pod is named: %+v", fresh[2].Pod)
	}
}

// Without the history it is not known.
func TestNamespaceIsNotGuessed(t *testing.T) {
	n := newNode(t)
	n.PodDir(dead)
	report, _ := n.inspector().Pass(t.Context(), nil)
	if diff := cmp.Diff(map[object.Kind]string{object.PodDirectory: ""}, namespaces(report, dead)); diff != "" {
		t.Error(diff)
	}
}

// One object with the namespace is enough for the whole pod, even if the runtime no longer has a sandbox.
func TestNamespaceOfOneIsThatOfAll(t *testing.T) {
	objects := []object.Object{
		{Kind: object.Mount, ID: "m", Pod: object.Pod{UID: dead}},
		{Kind: object.CNIAttachment, ID: "a", Pod: object.Pod{UID: dead, Namespace: "default", Name: "job"}},
	}
	addNames(objects, nil)
	if diff := cmp.Diff(objects[1].Pod, objects[0].Pod); diff != "" {
		t.Error(diff)
	}
}
