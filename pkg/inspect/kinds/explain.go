package kinds

import (
	"cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Explain adds facts to suspects that would cost too much for all objects.
func Explain(scan *hostscan.Scan, suspects []*object.Object) {
	var network, mounts, directories, logs []*object.Object
	serves := make(map[string]string) // by pod: what its processes serve
	for _, o := range suspects {
		switch {
		case o.Kind == object.Mount:
			mounts = append(mounts, o)
		case o.Kind == object.PodDirectory:
			directories = append(directories, o)
		case o.Kind == object.Process:
			explainProcess(scan.Host, o)
		case o.Kind == object.PodLogs:
			logs = append(logs, o)
		case o.Kind == object.Cgroup:
			explainCgroup(scan.Host, o)
		case o.Kind.Networked():
			network = append(network, o)
		}
	}
	if len(mounts) > 0 {
		explainMounts(scan, mounts)
	}
	if len(directories) > 0 {
		explainPodDirectories(scan, directories)
	}
	explainLogs(scan, logs)
	explainNetwork(scan, network)
	for _, o := range suspects {
		if _, known := serves[o.Pod.UID]; !known {
			serves[o.Pod.UID] = scan.Served(o.Pod.UID)
		}
		o.InUse = cmp.Or(serves[o.Pod.UID], o.InUse)
	}
}

// explainNetwork finds the processes in the network namespaces of objects.
func explainNetwork(scan *hostscan.Scan, network []*object.Object) {
	if len(network) == 0 {
		return
	}
	if err := findNetnsUsers(scan, network); err != nil {
		DoubtNetwork(network, err)
	}
}

// ExplainUnowned finds the processes in network namespaces without an owner: such a namespace is foreign.
func ExplainUnowned(scan *hostscan.Scan, objects []object.Object) {
	var network []*object.Object
	for i := range objects {
		if o := &objects[i]; o.Kind.Networked() && object.IsUnowned(o) {
			network = append(network, o)
		}
	}
	explainNetwork(scan, network)
}

// DoubtNetwork marks network objects whose processes could not be determined.
func DoubtNetwork(suspects []*object.Object, err error) {
	for _, o := range suspects {
		if o.Kind.Networked() || o.Kind.NamedByID() {
			o.Doubt = "processes in its network namespace: " + err.Error()
		}
	}
}
