package kinds

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Each cgroup driver has its own tree, kubepods or kubepods.slice. On a host with two kubelets (kind, minikube or k3s
// that share the host's cgroups) the other tree belongs to the other kubelet: only the tree of our kubelet's driver is
// ours. The driver is determined from, in this order:
//
//  1. the configuration of the agent
//  2. the trees: the one that has our kubelet's pods
//  3. the runtime, whose driver kubelet uses since 1.31
//
// Kubelet's configuration is not a source: the runtime may override it.

// driverWitness is one pass's evidence about the driver.
type driverWitness struct {
	configured string
	living     map[string]int // by driver: kubelet's pods that have cgroups or processes in its tree
	runtime    string         // as the runtime reports
	runtimeErr error
}

// decide returns the driver, or why it is unknown.
func (w driverWitness) decide() (driver, why string) {
	fs, systemd := w.living[host.CgroupfsDriver], w.living[host.SystemdDriver]
	switch {
	case w.configured != "":
		return w.configured, "as configured"
	case fs > 0 && systemd > 0:
		return "", fmt.Sprintf("%d of its pods are in the tree of cgroupfs and %d in that of systemd", fs, systemd)
	case fs > 0:
		return host.CgroupfsDriver, fmt.Sprintf("%d of its pods are in that tree", fs)
	case systemd > 0:
		return host.SystemdDriver, fmt.Sprintf("%d of its pods are in that tree", systemd)
	case w.runtimeErr != nil:
		return "", fmt.Sprintf("none of its pods has a cgroup, and the runtime does not report its driver: %v",
			w.runtimeErr)
	case w.runtime == host.CgroupfsDriver || w.runtime == host.SystemdDriver:
		return w.runtime, "as the runtime reports"
	}
	return "", fmt.Sprintf("none of its pods has a cgroup, and the runtime reports %q", w.runtime)
}

// hasDriver reports whether objects of a kind belong to the tree of a cgroup driver.
func hasDriver(kind object.Kind) bool { return kind == object.Cgroup || kind == object.Process }

// driverTimeout bounds the request to the runtime.
const driverTimeout = 5 * time.Second

// MarkOtherTrees marks each cgroup and process outside the tree of our kubelet's driver as foreign. If the driver is
// unknown, all of them are in doubt.
func MarkOtherTrees(ctx context.Context, scan *hostscan.Scan, objects []object.Object, kubelet witness.KubeletInventory) {
	if !slices.ContainsFunc(objects, func(o object.Object) bool { return hasDriver(o.Kind) }) {
		return
	}
	w := driverWitness{configured: scan.Host.Paths.CgroupDriver, living: livingByDriver(objects, kubelet)}
	if w.configured == "" && len(w.living) == 0 {
		limited, cancel := context.WithTimeout(ctx, driverTimeout)
		defer cancel()
		w.runtime, w.runtimeErr = host.Ask(limited, "runtime", scan.Host.Runtime.CgroupDriver)
	}
	driver, why := w.decide()
	for i := range objects {
		o := &objects[i]
		its := o.Facts["driver"]
		switch {
		case !hasDriver(o.Kind) || its == "" || its == driver || o.Foreign != "":
		case driver != "":
			if o.Kind == object.Cgroup {
				o.Kind = object.StrayCgroup // which has no action
			}
			o.Foreign = fmt.Sprintf("in the cgroup tree of driver %s, while our kubelet's is %s: %s", its, driver, why)
		case o.Doubt == "":
			o.Doubt = "kubelet's cgroup driver is not known, so this may belong to another kubelet: " + why
		}
	}
}

// ClaimStrays decides who owns the cgroups outside our kubelet's tree. One is ours only if kubelet, kubelet's directory
// of the pod, or the runtime has its UID. Another Kubernetes on the machine has its own UIDs. At the root, an empty one
// is otherwise unowned, and one with processes is foreign.
func ClaimStrays(objects []object.Object, kubelet witness.KubeletInventory) {
	ours := make(map[string]bool)
	for uid := range kubelet.Pods {
		ours[uid] = true
	}
	for i := range objects {
		if o := &objects[i]; o.Foreign == "" && slices.Contains([]object.Kind{object.PodDirectory, object.Sandbox,
			object.Container}, o.Kind) {
			ours[o.Pod.UID] = true
		}
	}
	for i := range objects {
		o := &objects[i]
		if o.Kind != object.StrayCgroup {
			continue
		}
		switch uid := o.Pod.UID; {
		case uid != "" && ours[uid]:
			o.Foreign = ""
		case o.Foreign != "":
		default:
			if uid != "" {
				o.Pod, o.Facts["podUID"] = object.Pod{}, uid
			}
			if o.Facts["populated"] != "" && (uid != "" || o.ContainerID == "") {
				o.Foreign = strayRuns
			}
		}
	}
}

// strayRuns is the reason why a cgroup outside our kubelet's tree is foreign.
const strayRuns = "processes run in it, and nothing shows that they are a pod's of our kubelet"

// DisownStrays marks those at the root with processes and without a named pod.
func DisownStrays(objects []object.Object) {
	for i := range objects {
		if o := &objects[i]; o.Kind == object.StrayCgroup && object.IsUnowned(o) && o.Facts["populated"] != "" {
			o.Foreign = strayRuns
		}
	}
}

// livingByDriver counts kubelet's pods in each tree.
func livingByDriver(objects []object.Object, kubelet witness.KubeletInventory) map[string]int {
	seen := make(map[string]bool)
	living := make(map[string]int)
	for i := range objects {
		o := &objects[i]
		driver := o.Facts["driver"]
		if _, ok := kubelet.Pods[o.Pod.UID]; !ok || !kubelet.OK() || !hasDriver(o.Kind) || driver == "" ||
			seen[driver+o.Pod.UID] {
			continue
		}
		seen[driver+o.Pod.UID] = true
		living[driver]++
	}
	return living
}
