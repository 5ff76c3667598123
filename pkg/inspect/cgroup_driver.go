package inspect

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Each cgroup driver has a tree of its own, kubepods and kubepods.slice, and on a host with two kubelets (kind,
// minikube or k3s that share the host's cgroups) the other tree is the other kubelet's. Only that of our kubelet's
// driver is ours. Which it is shows in this order:
//
//  1. the configuration of the agent
//  2. the trees themselves: where our kubelet's own pods are
//  3. the runtime, which kubelet follows since 1.31
//
// Kubelet's configuration is no witness: the runtime may overrule it, and then the first two still hold.

// driverWitness is what one pass has learnt of the driver.
type driverWitness struct {
	configured string
	living     map[string]int // by driver: pods of kubelet's that have cgroups or processes in its tree
	runtime    string         // as the runtime tells
	runtimeErr error
}

// decide returns the driver; where none is proven, why not.
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
		return "", fmt.Sprintf("none of its pods has a cgroup, and the runtime does not tell: %v", w.runtimeErr)
	case w.runtime == host.CgroupfsDriver || w.runtime == host.SystemdDriver:
		return w.runtime, "as the runtime tells"
	}
	return "", fmt.Sprintf("none of its pods has a cgroup, and the runtime tells %q", w.runtime)
}

// hasDriver reports whether objects of a kind are told by a cgroup.
func hasDriver(kind Kind) bool { return kind == Cgroup || kind == Process }

// driverTimeout bounds the one question to the runtime.
const driverTimeout = 5 * time.Second

// markOtherTrees says of each cgroup and process that is not in the tree of our kubelet's driver that it is foreign;
// where the driver is not known, nothing is known of any.
func markOtherTrees(ctx context.Context, scan *Scan, objects []Object, kubelet KubeletInventory) {
	if !slices.ContainsFunc(objects, func(o Object) bool { return hasDriver(o.Kind) }) {
		return
	}
	w := driverWitness{configured: scan.Host.Paths.CgroupDriver, living: livingByDriver(objects, kubelet)}
	if w.configured == "" && len(w.living) == 0 {
		limited, cancel := context.WithTimeout(ctx, driverTimeout)
		defer cancel()
		w.runtime, w.runtimeErr = ask(limited, "runtime", scan.Host.Runtime.CgroupDriver)
	}
	driver, why := w.decide()
	for i := range objects {
		o := &objects[i]
		its := o.Facts["driver"]
		switch {
		case !hasDriver(o.Kind) || its == "" || its == driver || o.Foreign != "":
		case driver != "":
			o.Foreign = fmt.Sprintf("in the cgroup tree of driver %s, while our kubelet's is %s: %s", its, driver, why)
		case o.Doubt == "":
			o.Doubt = "which cgroup driver kubelet has cannot be told, so this may be another kubelet's: " + why
		}
	}
}

// livingByDriver counts kubelet's pods in each tree.
func livingByDriver(objects []Object, kubelet KubeletInventory) map[string]int {
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
