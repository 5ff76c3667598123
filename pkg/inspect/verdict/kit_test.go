package verdict

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// seenLong is a history in which o was seen in five passes over 20 minutes, and denied twice by the apiserver.
func seenLong(objects ...object.Object) object.History {
	history := make(object.History)
	for i := range objects {
		history[object.Key(&objects[i])] = object.Sighting{
			Identity: objects[i].Identity, First: inspecttest.At(40 * time.Minute), Last: inspecttest.At(59 * time.Minute),
			Passes:  5,
			Pod:     objects[i].Pod,
			Denials: []finding.Timestamp{inspecttest.At(40 * time.Minute), inspecttest.At(50 * time.Minute)},
		}
	}
	return history
}

// named is an object whose pod has a name.
func named(uid, name string) object.Object {
	o := inspecttest.Object(object.PodDirectory, uid)
	o.Pod = object.Pod{UID: uid, Namespace: "default", Name: name}
	return o
}

// replaced gives kubelet and the apiserver another pod with the name of the dead one.
func replaced(t *witness.Inventory, started bool) {
	p := inspecttest.Pod(inspecttest.Other, "gone")
	p.Started = started
	t.Kubelet.Names["default/gone"], t.Cluster.Pods[inspecttest.Other] = 1, p
	t.Kubelet.Record += inspecttest.Other
}

// sandboxOf gives the runtime a sandbox of a pod.
func sandboxOf(t *witness.Inventory, uid, name, state string) {
	t.Runtime.Pods[uid] = witness.SandboxFact{Pod: inspecttest.Pod(uid, name).Pod, ID: uid, State: state}
}
