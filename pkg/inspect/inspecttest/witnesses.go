package inspecttest

import (
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

const (
	Static = "44444444444444444444444444444444" // UID of a static pod
	boot   = "boot-1"
)

// At is a timestamp at this time after the start of the machine.
func At(d time.Duration) finding.Timestamp {
	return finding.Timestamp{Wall: time.Unix(1_700_000_000, 0).Add(d).UTC(), Boot: boot, SinceBoot: d}
}

// Hour is the time of the evaluations.
var Hour = At(time.Hour)

// Pod is a running pod in the namespace default.
func Pod(uid, name string) witness.PodFact {
	return witness.PodFact{Pod: object.Pod{UID: uid, Namespace: "default", Name: name}, Phase: "Running"}
}

// Healthy is a node with one live pod, on which all witnesses answer and all gates are open.
func Healthy() witness.Inventory {
	answered := witness.Response{Asked: true, At: Hour}
	return witness.Inventory{
		Runtime: witness.RuntimeInventory{
			Response: answered, Name: "containerd", Age: time.Hour,
			Sandboxes: map[string]witness.SandboxFact{}, Pods: map[string]witness.SandboxFact{},
			Containers: map[string]string{},
			Grace:      map[string]time.Duration{}, Ready: witness.Condition{OK: true}, NetReady: witness.Condition{OK: true},
		},
		Containerd: witness.ContainerdInventory{Response: answered, Known: map[string]string{}, Pods: map[string]bool{}},
		Kubelet: witness.KubeletInventory{Response: answered, Pods: map[string]witness.PodFact{Living: Pod(Living, "web")},
			Age: time.Hour},
		Cluster: witness.ClusterInventory{
			Response: answered, Pods: map[string]witness.PodFact{Living: Pod(Living, "web")},
			Comparison: witness.Comparison{Shared: 1, Wanted: 1, Listed: 1},
			Node:       "n", Machine: "m", Boot: "b", LocalMachine: "m", LocalBoot: "b",
		},
		Static: witness.StaticPodInventory{Asked: true},
	}
}

// Object is one of a pod, with a sandbox if the runtime must know it.
func Object(kind object.Kind, uid string) object.Object {
	o := object.Object{Kind: kind, ID: "x", Pod: object.Pod{UID: uid}, Identity: object.Identity{File: object.FileID{Inode: 7}}}
	if kind.Networked() || kind.NamedByID() || slices.Contains([]object.Kind{object.Sandbox, object.Lease,
		object.SystemdUnit, object.LogLink}, kind) {
		o.SandboxID = Sandbox
	}
	return o
}

// Settings are the defaults of an agent that sees the processes of the host.
func Settings() object.Settings {
	s := object.DefaultSettings()
	s.HostNamespaces = true
	return s
}

// UIDOf is the UID of the pod of that number.
func UIDOf(n int) string { return fmt.Sprintf("%08d-0000-4000-8000-000000000000", n) }

// ErrRefused is the answer of a kubelet that does not grant the right.
var ErrRefused = fmt.Errorf("status 403: Forbidden (user=system:node:n): %w", fs.ErrPermission)

// ByName is the healthy node with a kubelet that refuses /pods. It has one pod; the dead one is long gone.
func ByName() witness.Inventory {
	t := Healthy()
	t.Kubelet.Pods, t.Kubelet.Names, t.Kubelet.Refused = nil, map[string]int{"default/web": 1}, ErrRefused
	t.Kubelet.WorkingErr, t.Kubelet.Record, t.Cluster.Version = ErrRefused, Living, "v1.36.3"
	t.Runtime.Pods[Living] = witness.SandboxFact{Pod: Pod(Living, "web").Pod, ID: "web", State: "READY"}
	t.Runtime.Running = map[string]bool{Living: true}
	return t
}
